"""A trajectory as it is stored: one JSON object, every token with its author, probability and weight."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_rl.rollout.codec import TokenCodec
from agent_rl.rollout.trajectory import Trajectory


def trajectory_record(
    trajectory: Trajectory,
    codec: TokenCodec,
    *,
    step: int,
    split: str,
    advantage: float | None = None,
    weights: list[float | None] | None = None,
    trainer_logprobs: list[float | None] | None = None,
) -> dict[str, Any]:
    """Lists under ids, pieces, authors (0 prompt, 1 policy, 2 tool), loss_mask, logprobs, weights and
    trainer_logprobs have one entry a token; the last two are None on tokens that took no part in the loss.
    ``trainer_logprobs``: of the training pass before the first update; its distance from ``logprobs`` is the mismatch.
    """
    ledger = trajectory.ledger
    ids = ledger.input_ids
    score, failure = trajectory.score, trajectory.failure
    return {
        "step": step,
        "split": split,
        "item_id": trajectory.item.id,
        "group": trajectory.group,
        "sample": trajectory.sample,
        "question": trajectory.item.question,
        "gold": list(trajectory.item.gold),
        "ids": ids,
        "pieces": codec.pieces(ids),
        "authors": ledger.authors,
        "loss_mask": ledger.loss_mask,
        "logprobs": [round(value, 6) for value in ledger.logprobs],
        "versions": ledger.versions,
        "weights": weights or [None] * len(ids),
        "trainer_logprobs": [value if value is None else round(value, 6) for value in trainer_logprobs]
        if trainer_logprobs
        else [None] * len(ids),
        "advantage": advantage,
        "reward": None if score is None else score.value,
        "score_parts": {} if score is None else score.parts,
        "stop_reason": str(trajectory.stop_reason),
        "answer": trajectory.answer,
        "turns": len(trajectory.turns),
        "error": None
        if failure is None
        else {"boundary": failure.boundary, "type": failure.type, "message": failure.message},
        "counters": trajectory.counters,
        "attempts": trajectory.attempts,
        "times": {
            "total_s": round(trajectory.seconds, 4),
            "queued_s": round(sum(turn.queued_s for turn in trajectory.turns), 4),
            "generate_s": round(sum(turn.generate_s for turn in trajectory.turns), 4),
            "tool_s": round(sum(turn.tool_s for turn in trajectory.turns), 4),
            "tool_queued_s": round(sum(turn.tool_queued_s for turn in trajectory.turns), 4),
        },
    }


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records as gzipped jsonl, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=4) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(partial, path)

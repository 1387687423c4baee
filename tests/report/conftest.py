"""A small made-up run, and what a test needs to change it."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest


def trajectory(step: int, sample: int, reward: float | None, answer: str, **changes) -> dict:
    pieces = [
        "Question",
        ":",
        " Who?",
        "<search>",
        " q",
        "</search>",
        "<information>",
        " Doc",
        "</information>",
        answer,
    ]
    authors = [0, 0, 0, 1, 1, 1, 2, 2, 2, 1]
    return {
        "step": step, "split": "train", "item_id": f"item{sample}", "group": f"train/{step}/0", "sample": sample,
        "question": "Who?", "gold": ["Ann"], "ids": list(range(10)), "pieces": pieces, "authors": authors,
        "loss_mask": [int(author == 1) for author in authors],
        "logprobs": [-0.1 * i if author == 1 else 0.0 for i, author in enumerate(authors)],
        "weights": [1.0 + 0.04 * i if author == 1 else None for i, author in enumerate(authors)],
        "trainer_logprobs": [-0.1 * i - 0.01 if author == 1 else None for i, author in enumerate(authors)],
        "advantage": reward, "reward": reward, "score_parts": {"em": float(reward == 1.0), "format": 1.0},
        "stop_reason": "answer", "answer": answer, "turns": 2, "error": None, "counters": {}, "times": {},
    } | changes  # fmt: skip


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def interval(mean: float) -> dict:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}


def make_run(path: Path, answer: str = "Ann") -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(
        "task: {kind: search}\nalgo: {name: tr_grpo}\nmodel: {path: smollm2-135m}\nrun_dir: '<b>x</b>'\n"
    )
    metrics = [{"phase": "warmup", "step": step - 3, "warmup/loss": 2.0 / step} for step in (1, 2, 3)]
    metrics += [
        {
            "phase": "train", "step": step, "reward/mean": -1 + 0.1 * step, "reward/em": 0.05 * step,
            "objective/grad_norm": 1.5, "objective/entropy": math.nan if step == 2 else 0.7,
            "rollout/policy_tokens_mean": 20.0, "rollout/tool_tokens_mean": 90.0, "rollout/stop/answer": 0.75,
            "rollout/stop/max_turns": 0.25, "time/rollout_s": 6.0, "time/update_s": 3.0, "time/step_s": 9.0,
            "mismatch/mean_abs_logp": 1e-3,
        }
        for step in range(1, 13)
    ]  # fmt: skip
    write_jsonl(path / "metrics.jsonl", metrics)
    write_jsonl(
        path / "trajectories/step_000012.jsonl.gz",
        [
            trajectory(12, 0, 1.0, answer),
            trajectory(12, 1, -1.0, "Bob"),
            trajectory(12, 2, -1.0, "Eve"),
            trajectory(12, 3, None, "broken", error={"boundary": "tool", "type": "X", "message": "down"}),
        ],
    )
    for label, step, em in (("before", 0, 0.2), ("after", 12, 0.5)):
        greedy, sampled = {"em": interval(em), "f1": interval(em + 0.1)}, {"avg@4": interval(em)}
        summary = {"label": label, "step": step, "questions": 40, "greedy": greedy, "sampled": sampled}
        (path / "eval").mkdir(exist_ok=True)
        (path / f"eval/{label}.json").write_text(json.dumps(summary))
        rows = [
            {"item_id": f"d{i}", "question": f"Dev question {i}?", "gold": ["Ann"], "mode": "greedy", "sample": 0,
             "answer": "Ann" if i < 40 * em else None, "em": float(i < 40 * em), "f1": 0.0}
            for i in range(40)
        ]  # fmt: skip
        write_jsonl(path / f"eval/{label}.jsonl", rows)
    (path / "eval/comparison.json").write_text(json.dumps({"greedy_em": interval(0.3)}))
    return path


@pytest.fixture(scope="session")
def made() -> SimpleNamespace:
    """The functions that make a run, by name."""
    return SimpleNamespace(trajectory=trajectory, write_jsonl=write_jsonl, run=make_run)

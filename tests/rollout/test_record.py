"""A stored trajectory: one entry a token in every list, and files that are whole or absent."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from agent_rl.errors import ToolServerUnavailable
from agent_rl.rollout.engine import RolloutSpec, run_rollout
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.rollout.record import trajectory_record, write_records
from agent_rl.rollout.trajectory import Trajectory
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec

CODEC, TASK = ToyCodec(), EchoTask()
PER_TOKEN = ("ids", "pieces", "authors", "loss_mask", "logprobs", "versions", "weights")


def trajectory(reply="a doc") -> Trajectory:
    script = {"s": ["<search>one</search>", "<answer>1</answer>"]}
    spec = RolloutSpec(
        TASK,
        ScriptedSampler(CODEC, script),
        ScriptedTools(lambda *_: reply),
        SearchR1Grammar(),
        CODEC,
        RolloutLimits(),
    )
    return asyncio.run(run_rollout(TASK.items("train")[1], spec, seed=0, session="s", group="g", sample=2))


def test_every_token_has_its_author_probability_and_text() -> None:
    record = trajectory_record(trajectory(), CODEC, step=3, split="train", advantage=0.5)
    length = len(record["ids"])
    assert {name: len(record[name]) for name in PER_TOKEN} == dict.fromkeys(PER_TOKEN, length)
    text = {
        author: "".join(piece for piece, a in zip(record["pieces"], record["authors"], strict=True) if a == author)
        for author in (0, 1, 2)
    }
    assert text == {
        0: "say 1",
        1: "<search>one</search><answer>1</answer>",
        2: "\n<information>\na doc\n</information>\n",
    }
    assert record["loss_mask"] == [int(author == 1) for author in record["authors"]]
    assert record["logprobs"] == [-0.5 if flag else 0.0 for flag in record["loss_mask"]]
    assert record["versions"] == [0 if flag else -1 for flag in record["loss_mask"]]
    assert record["weights"] == [None] * length
    assert (record["reward"], record["score_parts"], record["advantage"]) == (1.0, {"em": 1.0}, 0.5)
    assert (record["step"], record["split"], record["group"], record["sample"]) == (3, "train", "g", 2)
    assert (record["stop_reason"], record["answer"], record["turns"], record["error"]) == ("answer", "1", 2, None)
    times = record["times"]
    assert times.keys() == {"total_s", "queued_s", "generate_s", "tool_s", "tool_queued_s"}
    assert times["total_s"] >= times["generate_s"] >= 0


def test_broken_trajectory_has_no_reward_but_says_what_broke() -> None:
    record = trajectory_record(trajectory(ToolServerUnavailable("it is down")), CODEC, step=1, split="train")
    assert (record["reward"], record["score_parts"], record["stop_reason"]) == (None, {}, "failed")
    assert record["error"] == {"boundary": "tool", "type": "ToolServerUnavailable", "message": "it is down"}
    assert {len(record[name]) for name in PER_TOKEN} == {len(record["ids"])}


def test_records_are_written_and_read_back(tmp_path: Path) -> None:
    records = [trajectory_record(trajectory(reply), CODEC, step=1, split="dev") for reply in ("doc", "a fox")]
    path = tmp_path / "new" / "step_000001.jsonl.gz"
    write_records(path, records)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == records
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_failure_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.jsonl.gz"
    write_records(path, [{"step": 1}])

    def broken():
        yield {"step": 2}
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_records(path, broken())
    with gzip.open(path, "rt") as file:
        assert json.loads(file.read()) == {"step": 1}

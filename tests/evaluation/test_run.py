"""Evaluation: which questions, every row stored, no holes, and files that are whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agent_rl.config.schema import RunConfig
from agent_rl.errors import ToolServerUnavailable, TrainingError, UsageError
from agent_rl.evaluation.run import choose_items, compare, describe, drop_later, evaluate, load, save, save_comparison
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec

CODEC = ToyCodec()


def run(script, *, questions: int = 4, label: str = "after", reply=lambda *_: "doc", step: int = 3, **settings):
    task = EchoTask(questions)
    config = RunConfig.model_validate({"eval": settings, "rollout": {"retries": 0}})
    spec = RolloutSpec(
        task, ScriptedSampler(CODEC, script), ScriptedTools(reply), SearchR1Grammar(), CODEC, RolloutLimits()
    )
    items = task.items("dev")
    return asyncio.run(evaluate(config, spec, items, label=label, step=step, log=lambda _: None)), spec


def says_zero_or_sample(ids, params, session) -> str:
    """Greedy answers 0; sample n answers n."""
    return f"<answer>{0 if params.temperature == 0 else session.split('/')[-2]}</answer>"


def test_rows_and_summary() -> None:
    result, spec = run(says_zero_or_sample, samples=3)
    assert [row["mode"] for row in result.rows] == ["greedy"] * 4 + ["sampled"] * 12
    # Question n is right where the answer is n.
    assert result.em("greedy") == [[1.0], [0.0], [0.0], [0.0]]
    assert result.em("sampled") == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    summary = result.summary
    assert summary["greedy"]["em"]["mean"] == 0.25
    assert summary["sampled"]["em"]["mean"] == pytest.approx(0.25)
    assert summary["sampled"]["avg@3"]["mean"] == pytest.approx(0.25)
    assert summary["sampled"]["pass@3"]["mean"] == pytest.approx(0.75)
    assert summary["sampled"]["em"]["low"] <= 0.25 <= summary["sampled"]["em"]["high"]
    assert summary["greedy"]["reward"]["mean"] == pytest.approx(-0.5)
    assert summary["greedy"]["stop_reasons"] == {"answer": 1.0}
    assert (summary["label"], summary["step"], summary["questions"]) == ("after", 3, 4)
    assert {params.temperature for _, _, params in spec.sampler.requests} == {0.0, 1.0}
    assert describe(result).startswith("eval after: greedy EM 0.250 [")


def test_same_draws_at_every_evaluation() -> None:
    """Two checkpoints answer the same questions with the same random numbers: their difference is paired."""
    first, second = (run(says_zero_or_sample, label=label)[1].sampler.requests for label in ("before", "after"))
    assert sorted(r[2].seed for r in first) == sorted(r[2].seed for r in second)
    other = run(says_zero_or_sample, seed=1)[1].sampler.requests
    assert sorted(r[2].seed for r in first) != sorted(r[2].seed for r in other)


@pytest.mark.parametrize(("settings", "modes"), [({"samples": 0}, ["greedy"]), ({"greedy": False}, ["sampled"])])
def test_one_mode_alone(settings, modes) -> None:
    result, _ = run(says_zero_or_sample, **settings)
    assert [mode for mode in ("greedy", "sampled") if mode in result.summary] == modes
    assert {row["mode"] for row in result.rows} == set(modes)


def test_nothing_to_evaluate() -> None:
    with pytest.raises(UsageError, match=r"eval.greedy=false and eval.samples=0"):
        run(says_zero_or_sample, samples=0, greedy=False)


def test_an_evaluation_with_holes_is_none() -> None:
    def script(ids, params, session) -> str:
        return "<search>x</search>" if "q2" in session else "<answer>0</answer>"

    with pytest.raises(TrainingError, match=r"1 of 4 rollouts were not scored; first, q2: it is down"):
        run(script, samples=0, reply=lambda *_: ToolServerUnavailable("it is down"))


# ------------------------------------------------------------ questions


def test_subset_is_seeded_and_in_the_order_of_the_split() -> None:
    task = EchoTask(50)
    chosen = [item.id for item in choose_items(task, "dev", 10, 0)]
    assert chosen == [item.id for item in choose_items(task, "dev", 10, 0)]
    assert len(set(chosen)) == 10
    assert chosen == [item.id for item in task.items("dev") if item.id in chosen]
    assert chosen != [item.id for item in choose_items(task, "dev", 10, 1)]
    assert chosen != [item.id for item in choose_items(task, "test", 10, 0)]
    assert len(choose_items(task, "dev", 99, 0)) == 50


def test_split_without_questions() -> None:
    with pytest.raises(UsageError, match=r"eval.split=dev holds no questions"):
        choose_items(EchoTask(0), "dev", 10, 0)


# ------------------------------------------------------------ files


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    result, _ = run(says_zero_or_sample)
    save(result, tmp_path / "eval")
    assert load(tmp_path / "eval", "after") == result
    assert load(tmp_path / "eval", "before") is None
    (tmp_path / "eval" / "after.json").unlink()
    assert load(tmp_path / "eval", "after") is None, "rows without their summary are half an evaluation"


def test_comparison_is_paired(tmp_path: Path) -> None:
    before, _ = run(lambda *_: "<answer>7</answer>", label="before", step=0, samples=2)
    after, _ = run(says_zero_or_sample, samples=2)
    found = compare(before, after)
    assert found["greedy_em"]["mean"] == pytest.approx(0.25)
    assert found["sampled_em"]["mean"] == pytest.approx(0.25)
    assert compare(after, after)["greedy_em"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    save_comparison(found, tmp_path)
    assert json.loads((tmp_path / "comparison.json").read_text()) == found


def test_later_evaluations_are_dropped(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save(run(says_zero_or_sample, label=f"step_{step:06d}", step=step, samples=0)[0], tmp_path)
    save(run(says_zero_or_sample, label="before", step=0, samples=0)[0], tmp_path)
    drop_later(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("before.json", "before.jsonl"),
        *("step_000002.json", "step_000002.jsonl"),
        *("step_000004.json", "step_000004.jsonl"),
    ]
    drop_later(tmp_path / "none", 0)

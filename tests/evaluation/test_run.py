"""Evaluation: which questions, every row stored, no holes, and files that are whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agent_rl.config.schema import RunConfig
from agent_rl.errors import ArtifactError, TaskError, ToolServerUnavailable, TrainingError, UsageError
from agent_rl.evaluation.compare import compare, save_comparison
from agent_rl.evaluation.result import EvalResult, drop_later, load, read_result, save
from agent_rl.evaluation.rows import PartialRows
from agent_rl.evaluation.run import choose_items, describe, evaluate
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec
from tasks.base import Score

CODEC = ToyCodec()


def run(
    script,
    *,
    questions: int = 4,
    label: str = "after",
    reply=lambda *_: "doc",
    step: int = 3,
    more=None,
    task=None,
    **settings,
):
    task = task or EchoTask(questions)
    config = RunConfig.model_validate({"eval": settings, "rollout": {"retries": 0}})
    spec = RolloutSpec(
        task, ScriptedSampler(CODEC, script), ScriptedTools(reply), SearchR1Grammar(), CODEC, RolloutLimits()
    )
    items = task.items("dev")
    return asyncio.run(evaluate(config, spec, items, label=label, step=step, log=lambda _: None, **(more or {}))), spec


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


def test_a_task_whose_scores_lack_em_is_told() -> None:
    class Bare(EchoTask):
        def score(self, item, response_text):
            return Score(1.0)

    with pytest.raises(TaskError, match="lacks the part 'em'"):
        run(says_zero_or_sample, task=Bare(2))


# ------------------------------------------------------------ going on


def test_a_stopped_evaluation_asks_only_what_is_missing(tmp_path: Path) -> None:
    """The tool server dies at question 2; the same command finishes, with the draws of an undisturbed evaluation."""
    more = {"partial": tmp_path / "rows.jsonl", "model": "m"}

    def script(ids, params, session) -> str:
        return "<search>x</search>" if "q2" in session else says_zero_or_sample(ids, params, session)

    with pytest.raises(TrainingError, match=r"1 of 4 rollouts .* asks only what is missing"):
        run(script, reply=lambda *_: ToolServerUnavailable("it is down"), samples=3, more=more)
    resumed, spec = run(says_zero_or_sample, samples=3, more=more)
    assert {request[0].split("/")[-3] for request in spec.sampler.requests[:1]} == {"q2"}
    assert len(spec.sampler.requests) == 1 + 4 * 3
    whole, undisturbed = run(says_zero_or_sample, samples=3)
    seeds = {request[0]: request[2].seed for request in undisturbed.sampler.requests}
    assert all(seeds[request[0]] == request[2].seed for request in spec.sampler.requests)
    strip = {"seconds": 0}
    assert [row | strip for row in resumed.rows] == [row | strip for row in whole.rows]


def test_rows_are_kept_until_the_result_is_stored(tmp_path: Path) -> None:
    """The disk is full as the result is written: the same command then has nothing to ask again."""
    more = {"partial": tmp_path / "rows.jsonl", "model": "m"}
    first, _ = run(says_zero_or_sample, more=more)
    again, spec = run(says_zero_or_sample, more=more)
    assert spec.sampler.requests == []
    assert again.rows == first.rows


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    partial = tmp_path / "rows.jsonl"
    with PartialRows(partial, {"a": 1}) as stored:
        for name in ("q0", "q1"):
            stored.add([{"mode": "greedy", "item_id": name, "em": 1.0, "sample": 0}])
    partial.write_bytes(partial.read_bytes().replace(b'"q0"', b'\xff0"'))
    with pytest.raises(ArtifactError, match=r"rows.jsonl:2: is damaged .* again"), PartialRows(partial, {"a": 1}):
        pass


def test_an_answer_with_unicode_line_ends_is_read_back(tmp_path: Path) -> None:
    """JSON leaves U+2028 and U+0085 as they are, and str.splitlines cuts there."""
    rows = [{"mode": "greedy", "item_id": "q0", "em": 1.0, "sample": 0, "answer": "a\u2028b\x85c"}]
    save(EvalResult("x", {"label": "x"}, rows), tmp_path)
    assert read_result(str(tmp_path / "x.json")).rows == rows


def test_rows_of_another_evaluation_are_not_taken(tmp_path: Path) -> None:
    partial = tmp_path / "rows.jsonl"
    for change in ({"seed": 1}, {"samples": 2}, {"more": {"model": "other"}}, {"questions": 3}):
        with PartialRows(partial, {"an": "other"}) as stored:
            stored.add([{"mode": "greedy", "item_id": "q0", "em": 1.0, "sample": 0}])
        settings = {"samples": 1, **change}
        settings["more"] = {"partial": partial, **settings.get("more", {})}
        result, spec = run(says_zero_or_sample, **settings)
        assert len(spec.sampler.requests) == len(result.rows)


def test_half_a_line_is_asked_again(tmp_path: Path) -> None:
    partial = tmp_path / "rows.jsonl"
    with PartialRows(partial, {"a": 1}) as stored:
        for name in ("q0", "q1"):
            stored.add([{"mode": "greedy", "item_id": name, "em": 1.0, "sample": 0}])
    partial.write_text(partial.read_text()[:-9])  # killed while it wrote q1
    with PartialRows(partial, {"a": 1}) as stored:
        assert [row["item_id"] for row in stored.rows] == ["q0"]
        stored.add([{"mode": "greedy", "item_id": "q1", "em": 0.0, "sample": 0}])
    with PartialRows(partial, {"a": 1}) as stored:
        assert [(row["item_id"], row["em"]) for row in stored.rows] == [("q0", 1.0), ("q1", 0.0)]
    with PartialRows(partial, {"a": 2}) as stored:
        assert stored.rows == []


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


def test_ids_that_name_several_questions() -> None:
    class Twice(EchoTask):
        def items(self, split):
            return [*super().items(split), *super().items(split)]

    with pytest.raises(UsageError, match=r"4 ids name several questions; first: 'q0'"):
        choose_items(Twice(4), "dev", 10, 0)


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
    assert found["greedy_em"]["better"] == 1
    same = compare(after, after)["greedy_em"]
    assert same == {"mean": 0.0, "low": 0.0, "high": 0.0, "p": 1.0, "questions": 4, "better": 0, "worse": 0}
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

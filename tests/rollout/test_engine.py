"""The rollout loop on scripted samplers and tools: tokens, masks, stop reasons, failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.errors import SamplerError, ToolDeadlineExceeded, ToolServerUnavailable
from agent_rl.rollout.engine import RolloutSpec, run_rollout
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.rollout.trajectory import StopReason, Trajectory
from agent_rl.samplers.base import SampledTurn
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec
from tasks.base import Score
from tools.protocol import ToolResult

CODEC = ToyCodec()
TASK = EchoTask()
ITEM = TASK.items("train")[1]


def make_spec(script, reply=lambda tool, arguments: "Doc 1(Title: T) one", **limits) -> RolloutSpec:
    return RolloutSpec(
        task=TASK,
        sampler=ScriptedSampler(CODEC, script),
        tools=ScriptedTools(reply),
        grammar=SearchR1Grammar(),
        codec=CODEC,
        limits=RolloutLimits(**limits),
    )


def run(spec: RolloutSpec) -> Trajectory:
    return asyncio.run(run_rollout(ITEM, spec, seed=0, session="s"))


def test_search_then_answer() -> None:
    spec = make_spec({"s": ["<search>one</search>ignored", "so <answer>1</answer> and more"]})
    trajectory = run(spec)
    assert trajectory.stop_reason is StopReason.ANSWER
    assert trajectory.answer == "1"
    assert trajectory.score is not None
    assert trajectory.score.value == 1.0
    text = CODEC.decode(trajectory.ledger.input_ids)
    assert text == (
        "say 1<search>one</search>\n<information>\nDoc 1(Title: T) one\n</information>\nso <answer>1</answer>"
    )
    trained = "".join(
        piece
        for piece, flag in zip(CODEC.pieces(trajectory.ledger.input_ids), trajectory.ledger.loss_mask, strict=True)
        if flag
    )
    assert trained == "<search>one</search>so <answer>1</answer>"
    assert spec.tools.calls == [("s", "search", {"top_k": 2, "query": "one"})]
    assert spec.sampler.ended == ["s"]


def test_sampler_is_given_the_ledger_at_each_turn() -> None:
    spec = make_spec({"s": ["<search>a</search>", "<search>b</search>", "<answer>1</answer>"]})
    trajectory = run(spec)
    for (_, ids, _), turn in zip(spec.sampler.requests, trajectory.turns, strict=True):
        assert ids == trajectory.ledger.input_ids[: turn.start]


def test_ids_are_never_made_again_from_text() -> None:
    """huggingface/trl#5144: the policy split a word otherwise than the tokenizer would."""
    codec = ToyCodec(["s", "a", "y", " ", "1", "<", "think", ">", "<th", "ink>", "\n", "i", "n"])
    turn = SampledTurn([5, 6, 7], [-0.1, -0.2, -0.3], "stop", None, version=3)
    spec = replace(make_spec(lambda *_: turn), codec=codec)
    trajectory = run(spec)
    assert codec.encode("<think>") == [8, 9], "the tokenizer itself splits it otherwise"
    assert trajectory.ledger.input_ids[-3:] == [5, 6, 7]
    assert trajectory.ledger.loss_mask == [0] * 5 + [1] * 3
    assert trajectory.ledger.versions[-3:] == [3, 3, 3]


def test_stop_string_that_ends_inside_a_token() -> None:
    """NovaSky-AI/SkyRL#778: ids stay whole, the parsed text ends with the stop string."""
    codec = ToyCodec([*"say 1<rch>/\n", "</sea", "rch>!", "<search>"])
    turn = SampledTurn([*codec.encode("<search>a"), 12, 13], [-0.1] * 4, "stop", "</search>", version=0)
    answers = iter([turn, SampledTurn([codec.eos_id], [-0.1], "stop", None, version=0)])
    codec_text = "<search>a</search>!"
    assert codec.decode(turn.ids) == codec_text
    spec = replace(make_spec(lambda *_: next(answers)), codec=codec)
    spec = replace(spec, tools=ScriptedTools(lambda *_: "s"), grammar=_ShortFrame())
    trajectory = run(spec)
    assert trajectory.turns[0].text == "<search>a</search>"
    assert trajectory.turns[0].arguments == {"top_k": 2, "query": "a"}
    assert trajectory.ledger.input_ids[5:9] == turn.ids
    assert spec.sampler.requests[1][1] == trajectory.ledger.input_ids[: len(spec.sampler.requests[1][1])]


class _ShortFrame(SearchR1Grammar):
    def observation_frames(self, tools: tuple[str, ...]) -> list[str]:
        return ["\n", "\n"]


def test_turn_cut_in_mid_call_runs_no_tool() -> None:
    """vllm-project/vllm#58228."""
    spec = make_spec({"s": ["<search>who founded it in the end"]}, max_turn_tokens=19)
    trajectory = run(spec)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert trajectory.counters["truncated_turn"] == 1
    assert spec.tools.calls == []
    assert trajectory.scored
    assert "invalid_action" not in trajectory.counters


def test_call_inside_an_open_think_block_does_not_end_the_turn() -> None:
    parts = ["<think>maybe <search>red fox</search>", " helps</think><search>hare</search>", "<answer>1</answer>"]
    spec = make_spec({"s": parts})
    trajectory = run(spec)
    assert [call[2]["query"] for call in spec.tools.calls] == ["hare"]
    assert trajectory.counters["calls_in_think"] == 1
    assert len(trajectory.turns) == 2
    assert trajectory.turns[0].text == parts[0] + parts[1]


def test_neither_call_nor_answer() -> None:
    stopped = run(make_spec({"s": ["I give up"]}))
    assert stopped.stop_reason is StopReason.NO_ACTION
    assert stopped.counters["invalid_action"] == 1
    spec = replace(make_spec({"s": ["I give up", "<answer>1</answer>"]}), correct_invalid_action=True)
    corrected = run(spec)
    assert corrected.stop_reason is StopReason.ANSWER
    assert corrected.turns[0].observation is not None
    assert "<search>" in corrected.turns[0].observation
    mask = corrected.ledger.loss_mask
    hint = len(CODEC.encode(corrected.turns[0].observation))
    assert mask[corrected.turns[0].end : corrected.turns[1].start] == [0] * hint


def test_turn_limit_saves_the_last_call() -> None:
    spec = make_spec({"s": ["<search>a</search>"] * 5}, max_turns=2)
    trajectory = run(spec)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert len(spec.tools.calls) == 1, "nobody would read the second observation"


def test_prompt_that_does_not_fit_is_not_sampled() -> None:
    spec = make_spec({"s": []}, max_prompt_tokens=3)
    trajectory = run(spec)
    assert trajectory.stop_reason is StopReason.PROMPT_TOO_LONG
    assert not trajectory.scored
    assert spec.sampler.requests == []


@pytest.mark.parametrize(
    ("tool_reply", "sampler_reply", "boundary", "kind"),
    [
        (ToolServerUnavailable("refused"), "<search>a</search>", "tool", "ToolServerUnavailable"),
        (ToolDeadlineExceeded("no answer in 30 s"), "<search>a</search>", "tool", "ToolDeadlineExceeded"),
        (ToolResult("s", "overloaded", "queue full"), "<search>a</search>", "tool", "ToolOverloaded"),
        ("x", SamplerError("out of memory"), "sampler", "SamplerError"),
        ("x", KeyError("engine bug"), "sampler", "SamplerError"),
        ("x", SampledTurn([1], [-0.1], "abort", None, 0), "sampler", "SamplerError"),
    ],
)
def test_infrastructure_is_never_a_reward(tool_reply, sampler_reply, boundary, kind) -> None:
    """verl-project/verl-omni#366."""
    trajectory = run(make_spec(lambda *_: sampler_reply, lambda *_: tool_reply))
    assert trajectory.stop_reason is StopReason.FAILED
    assert trajectory.score is None
    assert trajectory.failure is not None
    assert (trajectory.failure.boundary, trajectory.failure.type) == (boundary, kind)


@pytest.mark.parametrize("status", ["invalid", "error", "timeout"])
def test_the_models_own_fault_is_an_observation(status) -> None:
    replies = iter([ToolResult("s", status, "query: must not be empty")])
    spec = make_spec({"s": ["<search></search>", "<answer>1</answer>"]}, lambda *_: next(replies))
    trajectory = run(spec)
    assert trajectory.scored
    assert trajectory.counters[f"tool_{status}"] == 1
    assert "must not be empty" in CODEC.decode(trajectory.ledger.input_ids)


def test_scorer_that_raises_is_counted_not_fatal() -> None:
    class Broken(EchoTask):
        def score(self, item, response_text):
            raise RuntimeError("bug")

    trajectory = run(replace(make_spec({"s": ["<answer>1</answer>"]}), task=Broken()))
    assert trajectory.stop_reason is StopReason.FAILED
    assert trajectory.failure is not None
    assert trajectory.failure.boundary == "task"


def test_stuck_tool_ends_at_the_rollout_limit_with_its_partial_turns() -> None:
    """verl-project/verl#7155."""
    spec = make_spec({"s": ["<search>a</search>"]}, rollout_timeout_s=0.1)
    spec = replace(spec, tools=ScriptedTools(lambda *_: "late", delay_s=30))
    trajectory = run(spec)
    assert trajectory.stop_reason is StopReason.ROLLOUT_TIMEOUT
    assert trajectory.score is None
    assert len(trajectory.turns) == 1
    assert trajectory.seconds < 3
    assert spec.sampler.ended == ["s"]


TEXTS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "fox", " 1 ", "a b", "\n"]
    ),
    max_size=8,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(turns=st.lists(TEXTS, min_size=30, max_size=30), turn_tokens=st.integers(1, 60), total=st.integers(1, 300))
def test_invariants_hold_whatever_the_policy_writes(turns: list[str], turn_tokens: int, total: int) -> None:
    spec = make_spec(
        {"s": turns}, max_turn_tokens=turn_tokens, max_response_tokens=total, max_turns=4, max_observation_tokens=80
    )
    trajectory = run(spec)
    ledger = trajectory.ledger
    sampled: list[int] = []
    for _, ids, params in spec.sampler.requests:
        assert ids == ledger.input_ids[: len(ids)]
        assert params.max_tokens <= turn_tokens
    for turn in trajectory.turns:
        sampled += range(turn.start, turn.end)
        assert turn.end - turn.start <= turn_tokens
        for stop in spec.grammar.stop_strings(TASK.tools):
            outside = turn.text.rpartition("</think>")[2] if "<think>" in turn.text else turn.text
            if turn.finish == "stop" and stop in outside and "<think>" not in outside:
                assert turn.text.endswith(stop), "nothing is kept after a stop string"
    assert [place for place, flag in enumerate(ledger.loss_mask) if flag] == sampled
    assert ledger.response_length() <= total
    assert trajectory.stop_reason is not None


def test_a_failure_in_the_second_part_of_a_turn_keeps_what_was_sampled() -> None:
    """A stop string inside a thought ends a part, not the turn; the sampler dies before the turn is over."""

    def script(ids, params, session):
        return SamplerError("it died") if "fox" in CODEC.decode(ids) else "<think>maybe <search>red fox</search>"

    trajectory = run(make_spec(script))
    assert trajectory.stop_reason is StopReason.FAILED
    assert trajectory.failure is not None
    assert trajectory.failure.message == "it died"
    assert [turn.finish for turn in trajectory.turns] == ["abort"]
    assert trajectory.turns[0].text == "<think>maybe <search>red fox</search>"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1"])
def test_a_score_that_is_no_number_is_the_tasks_fault(value) -> None:
    class Odd(EchoTask):
        def score(self, item, response_text):
            return Score(value)

    trajectory = run(replace(make_spec({"s": ["<answer>1</answer>"]}), task=Odd()))
    assert trajectory.score is None
    assert trajectory.failure is not None
    assert trajectory.failure.boundary == "task"
    assert repr(value) in trajectory.failure.message

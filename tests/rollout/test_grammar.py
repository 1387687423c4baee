"""Grammar search_r1: which tag counts. Inputs of reported faults are named by their report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.rollout.protocol import AnswerAction, CallAction, NoAction, SearchR1Grammar

GRAMMAR = SearchR1Grammar()
BOTH = ("search", "python")


def test_call_inside_think_is_not_a_call() -> None:
    """verl-project/verl#4757."""
    text = "<think>maybe <search>red fox</search> helps</think><search>arctic hare</search>"
    parsed = GRAMMAR.parse(text, ("search",))
    assert parsed.action == CallAction("search", {"query": "arctic hare"})
    assert parsed.calls_in_think == 1
    assert not parsed.open_think


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search> who founded Ely </search>", CallAction("search", {"query": "who founded Ely"})),
        ("I know. <answer> Paris </answer>", AnswerAction("Paris")),
        ("<answer>a</answer>", AnswerAction("a")),
        ("<search>who founded", NoAction()),
        ("nothing at all", NoAction()),
        ("", NoAction()),
        ("</search><search>x</search>", CallAction("search", {"query": "x"})),
        ("<search>x</answer>", NoAction()),
        ("<python>print(1)\n</python>", CallAction("python", {"code": "print(1)"})),
        ("<python> x = 1\nx </python>", CallAction("python", {"code": "x = 1\nx"})),
        ("<python>\n  x = 1\n  x\n</python>", CallAction("python", {"code": "  x = 1\n  x"})),
        ("<python>\n\n</python>", CallAction("python", {"code": ""})),
        ("<think>a</search><answer>b</answer>", NoAction()),
    ],
)
def test_parse(text: str, action: object) -> None:
    assert GRAMMAR.parse(text, BOTH).action == action


def test_first_completed_tag_wins_and_the_rest_is_counted() -> None:
    """vllm-project/vllm#17790: several calls in one turn."""
    parsed = GRAMMAR.parse("<search>a</search><search>b</search><answer>c</answer>", ("search",))
    assert parsed.action == CallAction("search", {"query": "a"})
    assert parsed.dropped_calls == 1


def test_a_tool_that_the_task_lacks_is_text() -> None:
    assert GRAMMAR.parse("<python>1</python>", ("search",)).action == NoAction()
    assert "</python>" not in GRAMMAR.stop_strings(("search",))
    assert GRAMMAR.stop_strings(()) == ("</answer>",)


def test_open_think_says_that_the_turn_is_not_over() -> None:
    assert GRAMMAR.parse("<think>I could <search>x</search>", ("search",)).open_think


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "a", " ", "\n", "<"])
    )
)
def test_parsing_never_raises_and_never_reads_into_a_think_block(parts: list[str]) -> None:
    text = "".join(parts)
    parsed = GRAMMAR.parse(text, ("search",))
    after = GRAMMAR.parse("<think><search>no</search></think>" + text, ("search",))
    assert after.action == parsed.action
    assert after.calls_in_think == parsed.calls_in_think + 1
    if text.startswith("<think>") and "</think>" not in text:
        assert parsed.action == NoAction()

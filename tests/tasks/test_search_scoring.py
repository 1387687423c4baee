"""Reading and comparing answers: hand cases, known faults, and real logged episodes."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.base import TURN_END
from tasks.search.scoring import (
    cover_em,
    em_unicode,
    exact_match,
    extract_answer,
    normalise_answer,
    repeated_queries,
    search_queries,
    token_f1,
    well_formed,
)

RUNS = Path(__file__).parents[2].parent / "shared/data/searchr1_runs/trajectories.open.jsonl.gz"
INFORMATION = re.compile(r"<information>.*?</information>", re.DOTALL)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("A", ""),
        ("an  Apple a day", "apple day"),
        ("U.S.", "us"),
        ("1,234", "1234"),
        ("theatre", "theatre"),
        ("Bob\u2019s", "bob\u2019s"),
    ],
)
def test_normalise(text, normal):
    assert normalise_answer(text) == normal


@pytest.mark.parametrize(
    ("answer", "gold", "em"),
    [
        ("montreal", ["Montreal", "City of Montreal"], 1.0),
        ("the city of montreal.", ["Montreal", "City of Montreal"], 1.0),
        ("p", ["Paris"], 0.0),
        ("A", ["A"], 1.0),
        (" A ", ["A"], 1.0),
        ("The", ["A"], 0.0),
        ("!", ["A"], 0.0),
        ("", ["A"], 0.0),
        (None, ["Paris"], 0.0),
    ],
)
def test_exact_match(answer, gold, em):
    """B45: any alias counts, a letter of one does not; a gold that normalises to nothing."""
    assert exact_match(answer, gold) == em


def test_em_unicode_forgives_typography_only():
    assert exact_match("1914\u20131918", ["1914-1918"]) == 0.0
    assert em_unicode("1914\u20131918", ["1914-1918"]) == 1.0
    assert em_unicode("O\u2019Hara", ["O'Hara"]) == 1.0
    assert em_unicode("\uff34okyo", ["Tokyo"]) == 1.0  # full-width T
    assert em_unicode("Zurich", ["Z\u00fcrich"]) == 0.0


def test_cover_em():
    assert cover_em("It was Paris, France", ["Paris"]) == 1.0
    assert cover_em("Par", ["Paris"]) == 0.0
    assert cover_em("anything", ["*"]) == 0.0  # a gold that normalises to nothing covers nothing
    assert cover_em("*", ["*"]) == 1.0


def test_f1_values():
    assert token_f1("Barack Hussein Obama", ["Barack Obama"]) == pytest.approx(0.8)
    assert token_f1("big big cat", ["big cat"]) == pytest.approx(0.8)  # a repeated word counts once
    assert token_f1("yes it is", ["yes"]) == 0.0
    assert token_f1("dog", ["cat", "hot dog"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer> Paris </answer>", "Paris"),
        ("<answer>a</answer> no, <answer>b</answer>", "b"),
        ("<answer>a</answer> <answer>cut o", "a"),
        ("<answer>cut o", None),
        ("Paris", None),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<think>maybe <answer>a</answer></think> <answer>b</answer>", "b"),
        ("<think>maybe <answer>a</answer></think>", None),
        ("<think>open <answer>a</answer>", None),
        ("<think>open <search>q</search>" + TURN_END + "<answer>a</answer>", "a"),
        ("<think>open <search>q</search>" + TURN_END + "<answer>a</answer> x</think>", None),
        ("<answer>a</answer></think> <answer>b</answer>", "b"),
        ("<think>x<think>y</think> <answer>b</answer>", "b"),
        ("<answer></answer>", ""),
    ],
)
def test_extract_answer(response, answer):
    """S15, S09: the last complete block outside thoughts, read whatever the format is like."""
    assert extract_answer(response) == answer


def test_a_thought_that_the_prompt_began_hides_what_is_in_it():
    """B15 (huggingface/trl#6966)."""
    assert extract_answer("hm <answer>a</answer>", prefilled=True) is None
    assert extract_answer("steps</think><answer>4</answer>", prefilled=True) == "4"
    assert well_formed("steps</think><answer>4</answer>", prefilled=True)
    assert not well_formed("steps</think><answer>4</answer>")


def test_searches_inside_thoughts_do_not_count():
    """B01."""
    text = "<think>maybe <search>red fox</search> helps</think><search>arctic hare</search><search> </search>"
    assert search_queries(text) == ["arctic hare"]
    assert search_queries("<think>never closed <search>a</search> <think>b</think>") == []


def test_queries_of_every_dialect_and_their_repeats():
    calls = [
        '{"name": "search", "arguments": {"query": "b"}}',
        '{"name": "python", "arguments": {"code": "1"}}',
        "[1]",
        "{",
    ]
    text = "<search> The fox </search><|begin_of_query|> a<|end_of_query|>"
    text += "".join(f"<tool_call>{call}</tool_call>" for call in calls) + "<search>fox!</search>"
    assert search_queries(text) == ["The fox", "a", "b", "fox!"]
    assert repeated_queries(search_queries(text)) == 1
    assert repeated_queries([]) == 0


@pytest.mark.parametrize(
    "response",
    [
        "<answer>a</answer>",
        "<search>q</search>\n<answer>a</answer>\n",
        "<think>t</think><search>q</search><think>u</think><search>r</search><think>v</think><answer>a</answer>",
        "So: <think>t</think> now <search>q</search> done <answer>a</answer>",
    ],
)
def test_well_formed(response):
    assert well_formed(response)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "a",
        "<think>a</search><answer>b</answer>",
        "<think>a <answer>b</answer>",
        "<answer>b",
        "b</answer>",
        "<answer>b</answer></answer>",
        "<answer>b</answer> more",
        "<answer>a</answer><answer>b</answer>",
        "<answer>b</answer><search>q</search>",
        "<search>q <answer>b</answer></search>",
        "<search> </search><answer>b</answer>",
        "<answer> </answer>",
        "<search>q</search><information>made up</information><answer>b</answer>",
        "<search>who founded",
    ],
)
def test_malformed(response):
    """B07: mismatched, unclosed, empty or disordered tags earn no format reward."""
    assert not well_formed(response)


tags = st.sampled_from(
    [f"<{slash}{name}>" for slash in ("", "/") for name in ("think", "search", "information", "answer")]
)
responses = st.lists(st.one_of(tags, st.text(max_size=5))).map("".join)


@given(responses)
def test_any_text_is_read_without_an_exception(response):
    answer = extract_answer(response)
    if well_formed(response):
        assert answer
        assert response.count("<answer>") == response.count("</answer>") == 1
    assert len(search_queries(response)) <= response.count("</search>")


@given(st.text(), st.lists(st.text(), min_size=1))
def test_measures_are_ordered(answer, gold):
    em, f1, cover = exact_match(answer, gold), token_f1(answer, gold), cover_em(answer, gold)
    assert 0.0 <= em <= f1 <= 1.0
    assert em <= cover
    assert normalise_answer(normalise_answer(answer)) == normalise_answer(answer)


def test_logged_episodes_are_reproduced():
    """Answer, EM and F1 of every real Search-R1 episode. Tool text, which a rollout never scores, ends a turn.

    The logged sub-EM counts a gold of ``*``, which normalises to nothing, as covered by any answer; not ours.
    """
    if not RUNS.exists():
        pytest.skip(f"real episodes are not at {RUNS}")
    covered_by_nothing, seen = [], 0
    with gzip.open(RUNS, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            answer, gold, logged = (
                extract_answer(INFORMATION.sub(TURN_END, row["response"])),
                row["golden_answers"],
                row["metric_score"],
            )
            seen += 1
            assert (answer or "") == row["pred"], row["id"]
            assert exact_match(answer, gold) == logged["em"], row["id"]
            assert token_f1(answer, gold) == pytest.approx(logged["f1"]), row["id"]
            if cover_em(answer, gold) != logged["acc"]:
                covered_by_nothing.append(row)
    assert all("" in map(normalise_answer, row["golden_answers"]) for row in covered_by_nothing)
    assert len(covered_by_nothing) <= 1
    assert seen == 2030


def test_the_r1_searcher_dialect_is_read():
    """Answer and number of searches of every logged episode of R1-Searcher; its verdicts are a model's, not EM."""
    runs = RUNS.parents[1] / "r1searcher_runs/trajectories.open.jsonl.gz"
    if not runs.exists():
        pytest.skip(f"real episodes are not at {runs}")
    documents = re.compile(r"<\|begin_of_documents\|>.*?<\|end_of_documents\|>", re.DOTALL)
    other_answer, verdicts = [], Counter()
    with gzip.open(runs, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            response = documents.sub(TURN_END, row["response"])
            answer = extract_answer(response)
            if (answer or "") != row["pred"].strip():
                other_answer.append((row["id"], answer, row["pred"]))
            calls = re.findall(r"<\|begin_of_query\|>", row["response"])
            assert len(calls) >= len(search_queries(response))
            verdicts[exact_match(answer, row["golden_answers"]), row["gpt4o_judge"]] += 1
    # The log's own answer is not in its response: somebody turned the date round.
    assert other_answer == [("bamboogle_qwen:102", "27 July 1953", "July 27, 1953")]
    assert verdicts == {(1.0, True): 414, (0.0, True): 90, (0.0, False): 247}

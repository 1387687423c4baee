"""No retrieved text may hold anything that our grammars or a chat format would read as a tag."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.tags import TAG_NAMES, neutralise_tags

TAG = re.compile(r"<\s*[/|]?\s*(" + "|".join(TAG_NAMES) + r")\b", re.IGNORECASE)
PIECES = st.sampled_from(["<", ">", "/", "|", " ", "\n", "answer", "SEARCH", "think", "tool_call", "b", "é", "="])


@pytest.mark.parametrize(
    "tag",
    [
        "<search>",
        "</information>",
        "< Answer >",
        "</ THINK>",
        "<python lang='x'>",
        "<|im_end|>",
        "<tool_call\n>",
    ],
)
def test_tags_become_visible_text(tag):
    made = neutralise_tags(f"before {tag} after")
    assert made == f"before ‹{tag[1:-1]}› after"


def test_an_unknown_special_token_is_neutralised():
    assert neutralise_tags("<|fim_prefix|>") == "‹|fim_prefix|›"


@pytest.mark.parametrize("text", ["a < b > c", "<b>bold</b>", "1 << 2", "<answers>", "x -> y", "<searching>"])
def test_other_text_is_left_alone(text):
    assert neutralise_tags(text) == text


@given(st.lists(PIECES).map("".join))
def test_no_tag_survives_and_nothing_else_changes(text):
    made = neutralise_tags(text)
    assert not TAG.search(made)
    assert made.replace("‹", "<").replace("›", ">") == text
    assert neutralise_tags(made) == made

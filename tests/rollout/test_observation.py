"""Observations within their budget: whole documents first, and always the closing tag."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_rl.rollout.observation import fit_observation
from agent_rl.testing import ToyCodec

CODEC = ToyCodec()
FRAME = ("\n<information>\n", "\n</information>\n")


def test_whole_documents_are_dropped_from_the_end() -> None:
    """verl-project/verl#4918: the closing tag survives truncation."""
    body = "Doc 1 abc\nDoc 2 def\nDoc 3 ghi"
    wanted = FRAME[0] + "Doc 1 abc\nDoc 2 def" + FRAME[1]
    ids, text, cut = fit_observation(body, FRAME, len(CODEC.encode(wanted)), CODEC)
    assert cut
    assert text == wanted
    assert CODEC.decode(ids) == text


@given(st.lists(st.text("abc ", max_size=12), max_size=6).map("\n".join), st.integers(0, 120))
def test_budget_and_frame(body: str, budget: int) -> None:
    ids, text, cut = fit_observation(body, FRAME, budget, CODEC)
    assert len(ids) <= budget
    assert CODEC.decode(ids) == text
    assert text == "" or (text.startswith(FRAME[0]) and text.endswith(FRAME[1]))
    assert cut == (len(FRAME[0] + body + FRAME[1]) > budget)

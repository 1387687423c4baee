"""What a response says outside its ``<think>`` blocks: nothing inside one is ever read as an answer or a call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tasks.base import TURN_END, Message

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def opens_think(messages: Sequence[Message]) -> bool:
    """Whether the prompt ends in ``<think>``, so that the response begins inside a thought (huggingface/trl#6966)."""
    return bool(messages) and messages[-1]["content"].rstrip().endswith("<think>")


def outside_thoughts(response: str, *, prefilled: bool = False) -> str:
    """The response without its thoughts; its turns stay apart (``TURN_END``).

    Turn by turn: a thought ends at its ``</think>``, else with its turn. A ``</think>`` that closes nothing closes a
    thought that the prompt began, so what stands before it in the turn is hidden. With ``prefilled`` the first turn
    begins inside a thought, closed or not.

    Where this and the public runs could pull apart: Search-R1 reads an answer inside a thought that its turn never
    closes; here it is hidden. None of its logged episodes has one: there a tool's output stands between the two, and
    so ends the thought.
    """
    turns = response.split(TURN_END)
    if prefilled:
        turns[0] = "<think>" + turns[0]
    return TURN_END.join(_THOUGHT.sub("", turn).rpartition("</think>")[2] for turn in turns)

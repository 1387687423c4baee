"""Grammars: how a policy's text asks for a tool or answers, and how an observation is written.

A grammar is chosen by name (``rollout.grammar``, see ``grammars.py``). ``search_r1``: ``<search> query </search>`` is
answered with ``<information> ... </information>``, ``<python> code </python>`` and ``<sql> query </sql>`` with
``<output> ... </output>``; ``<answer> ... </answer>`` ends; ``<think>`` is the model's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from tools.protocol import ToolResult


@dataclass(frozen=True, slots=True)
class CallAction:
    """The policy asks for a tool. ``fault``: the call cannot be made, and this is what the policy is told."""

    tool: str
    arguments: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerAction:
    """The policy answers; the trajectory ends."""

    text: str


@dataclass(frozen=True, slots=True)
class NoAction:
    """The turn holds neither a completed call nor a completed answer."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What one turn asks for. ``open_think``: the text ends inside a think block, so the turn is not over.

    ``further``: calls of the same turn that are made together with ``action``.
    """

    action: CallAction | AnswerAction | NoAction
    calls_in_think: int = 0
    dropped_calls: int = 0
    open_think: bool = False
    further: tuple[CallAction, ...] = ()


class Grammar(Protocol):
    name: str

    def stop_strings(self, tools: tuple[str, ...]) -> tuple[str, ...]: ...

    def parse(self, text: str, tools: tuple[str, ...]) -> ParsedTurn:
        """Read one policy turn. Never raises: whatever a model writes is data."""
        ...

    def observation_frames(self, tools: tuple[str, ...]) -> list[str]:
        """What stands before, between and after the outputs of ``tools`` (template separators included)."""
        ...

    def observation_text(self, result: ToolResult) -> str: ...

    def correction(self, tools: tuple[str, ...]) -> str:
        """The hint that follows a turn without an action (option ``correct_invalid_action``)."""
        ...


class SearchR1Grammar:
    """Tags of Search-R1 (arXiv 2503.09516). The first completed tag outside ``<think>`` wins."""

    name = "search_r1"
    answer_tags: tuple[str, ...] = ("answer",)
    # tool, tag, argument
    _tool_tags = (("search", "search", "query"), ("python", "python", "code"), ("sql", "sql", "query"))
    _think = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)

    def stop_strings(self, tools: tuple[str, ...]) -> tuple[str, ...]:
        tags = [tag for tool, tag, _ in self._tool_tags if tool in tools]
        return tuple(f"</{tag}>" for tag in (*tags, *self.answer_tags))

    def parse(self, text: str, tools: tuple[str, ...]) -> ParsedTurn:
        tags = {tag: (tool, argument) for tool, tag, argument in self._tool_tags if tool in tools}
        # Without any tag: a pattern that is found nowhere.
        pattern = re.compile(rf"<({'|'.join([*tags, *self.answer_tags]) or '(?!)'})>(.*?)</\1>", re.DOTALL)
        thoughts = list(self._think.finditer(text))
        open_think = bool(thoughts) and not thoughts[-1].group(1)
        outside = self._think.sub(lambda match: " " * len(match.group()), text)
        calls_in_think = sum(
            match.group(1) != "answer" for thought in thoughts for match in pattern.finditer(thought.group())
        )
        found = list(pattern.finditer(outside))
        if not found:
            return ParsedTurn(NoAction(), calls_in_think, open_think=open_think)
        first, rest = found[0], found[1:]
        dropped = sum(match.group(1) != "answer" for match in rest)
        if first.group(1) == "answer":
            return ParsedTurn(AnswerAction(first.group(2).strip()), calls_in_think, dropped)
        tool, argument = tags[first.group(1)]
        text = _code(first.group(2)) if argument == "code" else first.group(2).strip()
        return ParsedTurn(CallAction(tool, {argument: text}), calls_in_think, dropped)

    def observation_frames(self, tools: tuple[str, ...]) -> list[str]:
        tag = "information" if tools == ("search",) else "output"  # one call a turn: the first completed tag
        return [f"\n<{tag}>\n", f"\n</{tag}>\n"]

    def observation_text(self, result: ToolResult) -> str:
        return result.text.strip()

    def correction(self, tools: tuple[str, ...]) -> str:
        calls = " or ".join(f"<{tag}> ... </{tag}>" for tool, tag, _ in self._tool_tags if tool in tools)
        ways = f"Call a tool with {calls}, or answer" if calls else "Answer"
        return f"\nThat was neither a call nor an answer. {ways} with <answer> ... </answer>.\n"


def _code(text: str) -> str:
    """Code between its tags. On a line of its own its first line keeps its indentation, which means something."""
    beside_tag, _, below = text.partition("\n")
    return (text.lstrip() if beside_tag.strip() else below.strip("\r\n")).rstrip()

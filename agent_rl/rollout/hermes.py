"""Grammar ``hermes``: the model's own function calling, as its chat template writes it.

A call is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, a turn may hold several, and the model's own end
token ends it. Results come back as messages of role ``tool``, in the very text that the chat template has for them; the
tools themselves are described in the prompt by the template. A turn without a call is the answer.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agent_rl.rollout.codec import TokenCodec
from agent_rl.rollout.protocol import AnswerAction, CallAction, NoAction, ParsedTurn
from tools.protocol import ToolResult


class HermesGrammar:
    """``max_calls``: calls of one turn that are made; further ones are dropped and counted."""

    name = "hermes"
    _think = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
    _call = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

    def __init__(self, codec: TokenCodec, max_calls: int = 1) -> None:
        self._codec, self._max_calls = codec, max_calls

    def stop_strings(self, tools: tuple[str, ...]) -> tuple[str, ...]:
        return ()  # the model's own end token: a template without it would be another prompt than it was trained on

    def parse(self, text: str, tools: tuple[str, ...]) -> ParsedTurn:
        thoughts = list(self._think.finditer(text))
        open_think = bool(thoughts) and not thoughts[-1].group(1)
        in_think = sum(len(self._call.findall(thought.group())) for thought in thoughts)
        outside = self._think.sub("", text)
        calls = [_read_call(match.group(1), tools) for match in self._call.finditer(outside)]
        if calls:
            made = calls[: self._max_calls]
            return ParsedTurn(made[0], in_think, len(calls) - len(made), further=tuple(made[1:]))
        if open_think or "<tool_call>" in outside:
            return ParsedTurn(NoAction(), in_think, open_think=open_think)
        answers = re.findall(r"<answer>(.*?)</answer>", outside, re.DOTALL)
        return ParsedTurn(AnswerAction((answers[-1] if answers else outside).strip()), in_think)

    def observation_frames(self, tools: tuple[str, ...]) -> list[str]:
        return self._codec.turn_frames("tool", len(tools))

    def observation_text(self, result: ToolResult) -> str:
        return result.text.strip()

    def correction(self, tools: tuple[str, ...]) -> str:
        before, after = self._codec.turn_frames("user", 1)
        return f"{before}That was neither a complete call nor an answer. Call a tool, or answer.{after}"


def _read_call(body: str, tools: tuple[str, ...]) -> CallAction:
    """The call, or one that cannot be made with what the policy is told about it; never an exception."""

    def cannot(reason: str, tool: str = "") -> CallAction:
        return CallAction(tool, {}, fault=f"Error: {reason}")

    try:
        call: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        return cannot(f"the tool call is not valid JSON ({error}).")
    if not isinstance(call, dict):
        return cannot("the tool call should be a JSON object with 'name' and 'arguments'.")
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or name not in tools:
        return cannot(f"'name' is {json.dumps(name)}; the tools are {', '.join(tools)}.")
    if not isinstance(arguments, dict):
        return cannot(f"'arguments' should be a JSON object, not {json.dumps(arguments)[:200]}.", name)
    return CallAction(name, arguments)

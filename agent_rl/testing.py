"""Test doubles that are real code: a scripted sampler, a toy codec, scripted tools, a tiny model.

Made for this project's tests and for those of people who write tasks and tools of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_rl.samplers.base import SampledTurn, SamplingParams
from tasks.base import Message, OracleTurn, Score, TaskItem
from tools.protocol import ToolResult

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ToyCodec:
    """Greedy longest match over a list of pieces; with none given, a character is a token.

    The last id is the end token (decoded to nothing). Raises ValueError for text that no piece begins.
    """

    def __init__(self, pieces: Sequence[str] | None = None) -> None:
        self._pieces = list(pieces) if pieces is not None else [chr(code) for code in (10, *range(32, 127))]
        self._by_length = sorted(range(len(self._pieces)), key=lambda i: -len(self._pieces[i]))
        self.eos_id = len(self._pieces)
        self.eos_ids = frozenset({self.eos_id})
        self.vocabulary = len(self._pieces) + 1

    def render(self, messages: list[Message]) -> list[int]:
        return self.encode("\n".join(message["content"] for message in messages))

    def turn_frames(self, role: str, count: int) -> list[str]:
        return [f"|{role}:", *[f"|{role}:"] * (count - 1), "|assistant:"]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            match = next((i for i in self._by_length if text.startswith(self._pieces[i])), None)
            if match is None:
                raise ValueError(f"no piece begins {text[:10]!r}")
            ids.append(match)
            text = text[len(self._pieces[match]) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[token] for token in ids if token != self.eos_id)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[token] if token != self.eos_id else "<eos>" for token in ids]


Script = Callable[[list[int], SamplingParams, str], str | SampledTurn | Exception]


class ScriptedSampler:
    """Says what ``script(ids, params, session)`` returns: a text, a whole turn, or an error to raise.

    A text is cut at its first stop string and at ``max_tokens``, as a real sampler would. Every request is kept
    in ``requests`` as (session, ids, params).
    """

    def __init__(self, codec: ToyCodec, script: Script | Mapping[str, Sequence[str]]) -> None:
        self._codec = codec
        self._script = script if callable(script) else _by_session(script)
        self.requests: list[tuple[str, list[int], SamplingParams]] = []
        self.ended: list[str] = []

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        self.requests.append((session, list(ids), params))
        await asyncio.sleep(0)
        said = self._script(list(ids), params, session)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, SampledTurn):
            return said
        return self.turn(said, params)

    def turn(self, text: str, params: SamplingParams) -> SampledTurn:
        ends = [(text.find(stop) + len(stop), stop) for stop in params.stop_strings if stop in text]
        end, stop = min(ends, default=(len(text), None))
        ids = self._codec.encode(text[:end])
        if stop is None:
            ids = [*ids, self._codec.eos_id]
        if len(ids) > params.max_tokens:
            ids = ids[: params.max_tokens]
            return SampledTurn(ids, [-0.5] * len(ids), "length", None, version=0)
        return SampledTurn(ids, [-0.5] * len(ids), "stop", stop, version=0)

    async def end_session(self, session: str) -> None:
        self.ended.append(session)


def _by_session(turns: Mapping[str, Sequence[str]]) -> Script:
    """Turns by session; the key "*" serves every session that has none of its own."""
    places: dict[str, int] = {}

    def script(ids: list[int], params: SamplingParams, session: str) -> str:
        place = places.get(session, 0)
        places[session] = place + 1
        return turns.get(session, turns.get("*", ()))[place]

    return script


class ScriptedTools:
    """Answers each call with ``reply(tool, arguments)``: a text, a ToolResult, or an error to raise."""

    def __init__(
        self, reply: Callable[[str, dict[str, Any]], str | ToolResult | Exception], delay_s: float = 0.0
    ) -> None:
        self._reply, self._delay_s = reply, delay_s
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.ended: list[str] = []

    async def call(
        self, tool: str, arguments: dict[str, Any], *, session: str, deadline_s: float | None = None
    ) -> ToolResult:
        self.calls.append((session, tool, arguments))
        await asyncio.sleep(self._delay_s)
        said = self._reply(tool, arguments)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, ToolResult):
            return said
        return ToolResult(id=session, status="ok", text=said)

    async def end_session(self, session: str) -> None:
        self.ended.append(session)


class EchoTask:
    """Asks ``question``; EM 1 where the text of the last answer block equals the gold. One tool: ``search``."""

    name = "echo"
    grammar = "search_r1"
    tools: tuple[str, ...] = ("search",)
    tool_arguments: Mapping[str, Mapping[str, Any]] = {"search": {"top_k": 2}}
    max_score = 1.0

    def __init__(self, count: int = 4) -> None:
        self._items = [TaskItem(f"q{n}", f"say {n}", (str(n),)) for n in range(count)]

    def items(self, split: str) -> Sequence[TaskItem]:
        return self._items

    def messages(self, item: TaskItem) -> list[Message]:
        return [{"role": "user", "content": item.question}]

    def score(self, item: TaskItem, response_text: str) -> Score:
        answer = response_text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
        em = float(answer == item.gold[0])
        return Score(2 * em - 1, {"em": em}, answer or None)

    def oracle(self, item: TaskItem) -> list[OracleTurn]:
        return [OracleTurn("<search>x</search>"), OracleTurn(f"<answer>{item.gold[0]}</answer>")]

    def validate(self, item: TaskItem) -> None:
        assert self.score(item, self.oracle(item)[-1].text).value == self.max_score


def tiny_model(vocabulary: int, *, seed: int = 0) -> PreTrainedModel:
    """A random two-layer Llama in float32 with grouped queries and the project's attention; ready at once."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_rl import attention

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,  # far from uniform, so that a wrong position or mask shows in the logits
        bos_token_id=None,
        eos_token_id=vocabulary - 1,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation(attention.register())
    return model

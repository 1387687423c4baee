"""Two-turn search episodes of fixed lengths: prompt, query, observation, answer. The same work for every engine.

A model's own turns would end where it likes; here a turn has exactly its tokens, so that rates can be compared. The
text is miniwiki's.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_rl.config.schema import BenchRolloutConfig
from agent_rl.rollout.codec import HFCodec
from agent_rl.rollout.engine import RolloutSpec, derive_seed
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.observation import fit_observation
from agent_rl.rollout.protocol import CallAction, ParsedTurn, SearchR1Grammar
from agent_rl.samplers.base import SampledTurn, Sampler, SamplingParams
from tasks.base import Message, OracleTurn, Score, TaskItem
from tasks.miniwiki.world import World
from tools.protocol import ToolResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Episodes:
    """``items``: a question for each group. ``sessions``: every trajectory, named as ``run_groups`` names it."""

    label = "bench"

    def __init__(self, config: BenchRolloutConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.config = config
        self.codec = _Codec(tokenizer, config.prompt_tokens)
        words = [token for passage in World(0, 300).passages for token in self.codec.encode(f"{passage.text} ")]

        def text(number: int, tokens: int) -> str:
            """Twice as long as is wanted: tokens may join when it is read again, and what is too much is cut."""
            start = 97 * number % (len(words) - 2 * tokens)
            return self.codec.decode(words[start : start + 2 * tokens])

        groups = config.episodes // config.group_size
        self.items = [TaskItem(str(n), text(n, config.prompt_tokens), ("",)) for n in range(groups)]
        self.sessions = [
            (item, f"{self.label}/{place}/{item.id}/{sample}/1")
            for place, item in enumerate(self.items)
            for sample in range(config.group_size)
        ]
        self.result = text(groups, config.observation_tokens)
        before, after = SearchR1Grammar().observation_frames(("search",))
        self.observation, _, _ = fit_observation(self.result, (before, after), config.observation_tokens, self.codec)

    def prompt(self, item: TaskItem) -> list[int]:
        return self.codec.encode(item.question)[: self.config.prompt_tokens]

    def spec(self, sampler: Sampler, latency_s: float) -> RolloutSpec:
        """What the project's own loop runs them with."""
        config = self.config
        limits = RolloutLimits(max_turns=2, max_observation_tokens=config.observation_tokens, rollout_timeout_s=3600.0)
        return RolloutSpec(_Task(self.items), sampler, _Tools(self.result, latency_s), _Calls(), self.codec, limits)


def latency(mean_s: float, session: str) -> float:
    """Exponential, from the session's name alone: every engine waits the same."""
    return random.Random(derive_seed("latency", session)).expovariate(1 / mean_s) if mean_s else 0.0


class ForcedLengths:
    """A sampler whose first turn has ``query_tokens`` and whose second has ``answer_tokens``.

    ``last_begun``: when the last of the trajectories so far began (time.perf_counter).
    """

    def __init__(self, sampler: Sampler, config: BenchRolloutConfig) -> None:
        self._sampler, self._config = sampler, config
        self.last_begun = 0.0

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        first = len(ids) == self._config.prompt_tokens
        if first:
            self.last_begun = time.perf_counter()
        wanted = self._config.query_tokens if first else self._config.answer_tokens
        turn = await self._sampler.sample(ids, replace(params, max_tokens=wanted), session=session)
        if len(turn.ids) != wanted:
            raise RuntimeError(f"a turn of {len(turn.ids)} tokens ({turn.finish}), not of {wanted}")
        return replace(turn, finish="stop")

    async def end_session(self, session: str) -> None:
        await self._sampler.end_session(session)


class _Codec(HFCodec):
    """Prompts of one length, and no token that ends a turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_tokens: int) -> None:
        super().__init__(tokenizer, "plain")
        self.eos_ids = frozenset()
        self._prompt_tokens = prompt_tokens

    def render(self, messages: list[Message]) -> list[int]:
        return super().render(messages)[: self._prompt_tokens]


class _Calls(SearchR1Grammar):
    """Every turn is a call: with two turns allowed, the second ends the trajectory."""

    name = "bench"

    def stop_strings(self, tools: tuple[str, ...]) -> tuple[str, ...]:
        # No model writes them: they cost what stop strings cost, and end nothing.
        return ("</search\x00>", "</answer\x00>")

    def parse(self, text: str, tools: tuple[str, ...]) -> ParsedTurn:
        return ParsedTurn(CallAction("search", {"query": text}))


class _Tools:
    def __init__(self, result: str, latency_s: float) -> None:
        self._result, self._latency_s = result, latency_s

    async def call(
        self, tool: str, arguments: dict[str, Any], *, session: str, deadline_s: float | None = None
    ) -> ToolResult:
        await asyncio.sleep(latency(self._latency_s, session))
        return ToolResult(session, "ok", self._result)

    async def end_session(self, session: str) -> None:
        return None


class _Task:
    """Its items' questions as they stand; every answer scores 0."""

    name = grammar = "bench"
    tools: tuple[str, ...] = ("search",)
    tool_arguments: Mapping[str, Mapping[str, Any]] = {}
    max_score = 0.0

    def __init__(self, items: Sequence[TaskItem]) -> None:
        self._items = items

    def items(self, split: str) -> Sequence[TaskItem]:
        return self._items

    def messages(self, item: TaskItem) -> list[Message]:
        return [{"role": "raw", "content": item.question}]

    def score(self, item: TaskItem, response_text: str) -> Score:
        return Score(0.0)

    def oracle(self, item: TaskItem) -> list[OracleTurn]:
        return []

    def validate(self, item: TaskItem) -> None:
        return None

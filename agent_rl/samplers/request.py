"""A turn that is asked of the embedded sampler: what was asked, what was sampled, and who waits for it."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from agent_rl.errors import SamplerError
from agent_rl.rollout.codec import TokenCodec
from agent_rl.samplers.base import Finish, SampledTurn, SamplingParams
from agent_rl.samplers.deliver import deliver


@dataclass(slots=True)
class TurnRequest:
    """``asked`` and ``begun`` (time.perf_counter) say how long the turn waited to be admitted."""

    ids: list[int]
    params: SamplingParams
    session: str
    future: asyncio.Future[SampledTurn]
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    asked: float = field(default_factory=time.perf_counter)
    begun: float = 0.0
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cancelled: bool = False

    def ended(self, codec: TokenCodec) -> tuple[Finish, str | None] | None:
        """How the turn ended with its newest token, or None while it goes on."""
        if self.sampled[-1] in codec.eos_ids:
            return "stop", None
        stops = self.params.stop_strings
        if stops:
            # A stop string that ends in the newest token starts at most as many tokens ago as it has bytes:
            # a token may be less than a character, but not less than a byte.
            longest = max(len(stop.encode()) for stop in stops)
            tail = codec.decode(self.sampled[-longest:])
            found = [(tail.rfind(stop), stop) for stop in stops if stop in tail]
            if found:
                return "stop", min(found)[1]
        if len(self.sampled) >= self.params.max_tokens:
            return "length", None
        return None

    def answer(self, finish: Finish, stop_string: str | None, version: int) -> None:
        queued_s = self.begun - self.asked
        turn = SampledTurn(self.sampled, self.logprobs, finish, stop_string, version, queued_s)
        deliver(self.future, self.loop, turn)

    def fail(self, error: SamplerError) -> None:
        deliver(self.future, self.loop, error)

"""From a sampler's worker thread back to the coroutine that waits for the turn."""

from __future__ import annotations

import asyncio
import contextlib

from agent_rl.errors import SamplerError
from agent_rl.samplers.base import SampledTurn


def deliver(
    future: asyncio.Future[SampledTurn], loop: asyncio.AbstractEventLoop, outcome: SampledTurn | SamplerError
) -> None:
    """Settle ``future``, which belongs to ``loop``, from another thread. Nothing where nobody waits any more."""

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, SampledTurn):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(settle)

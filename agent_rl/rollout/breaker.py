"""Noticing that the tool server is down, saying so once, and not storming it when it comes back."""

from __future__ import annotations

import asyncio
import logging
import time

# the client's own log: whoever listens to it hears of the server too
log = logging.getLogger("agent_rl.rollout.tool_client")

# failures in a row, with no success between, after which the server counts as down
BREAKER_FAILURES = 3


class Breaker:
    """Notices that the server is down and says so once; while it is down, one call at a time tries it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._failures = 0
        self._down_since: float | None = None
        self._probe = asyncio.Lock()

    @property
    def down(self) -> bool:
        return self._down_since is not None

    def failed(self, error: BaseException) -> None:
        self._failures += 1
        if self._failures >= BREAKER_FAILURES and self._down_since is None:
            self._down_since = time.monotonic()
            log.error("%s Calls wait for it until their deadlines.", server_is_down(self._url, error))

    def worked(self) -> None:
        if self._down_since is not None:
            log.warning("the tool server at %s is back after %.1f s", self._url, time.monotonic() - self._down_since)
        self._failures, self._down_since = 0, None

    async def pass_through(self) -> bool:
        """Wait for a turn. True: this call is the probe, and must :meth:`release` when it has its outcome."""
        if not self.down:
            return False
        await self._probe.acquire()
        if self.down:
            return True
        self._probe.release()
        return False

    def release(self) -> None:
        self._probe.release()


def server_is_down(url: str, error: BaseException | None) -> str:
    why = f" ({type(error).__name__}: {error})" if error is not None else ""
    return f"the tool server at {url} is down{why}; start one with `agent-rl serve-tools index=... port=...`."

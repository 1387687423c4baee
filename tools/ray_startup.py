"""The first start of a deployment on Ray: replicas tell here how far they are, and whoever deployed waits here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

# A replica that dies while it loads (out of memory) is started anew; not for ever
MAX_STARTS_EACH = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """``failure`` is None where all replicas are ready, each of them as ``description`` says."""

    description: str = ""
    failure: str | None = None
    exit_code: int = 1


class Startup:
    """An actor. The methods wait in its event loop."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._begun = self._loaded = 0
        self._ready: dict[str, str] = {}
        self._all_loaded, self._over = asyncio.Event(), asyncio.Event()
        self._outcome = Outcome()

    async def begin(self) -> bool:
        """Whether the deployment is in its first start, so that a replica may load beside the others."""
        if self._all_loaded.is_set():
            return False
        self._begun += 1
        if self._begun > MAX_STARTS_EACH * self._replicas:
            await self.failed("it died again and again; does its memory suffice?", 1)
        return True

    async def loaded(self) -> None:
        """Returns when as many replicas have loaded as there are to be."""
        self._loaded += 1
        if self._loaded >= self._replicas:
            self._all_loaded.set()
        await self._all_loaded.wait()

    async def ready(self, replica: str, description: str) -> None:
        self._ready[replica] = description
        if len(self._ready) >= self._replicas and not self._over.is_set():
            self._outcome = Outcome(description)
            self._over.set()

    async def failed(self, why: str, exit_code: int) -> None:
        if not self._over.is_set():
            self._outcome = Outcome(failure=why, exit_code=exit_code)
            self._over.set()

    async def all_ready(self) -> Outcome:
        await self._over.wait()
        return self._outcome

"""Which sandbox a call runs in: one of its own, or the one that its session keeps."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.python.forkserver import ForkServer
from tools.python.sandbox import Outcome, Sandbox, SandboxBroken

REMEMBERED = 10_000


class NoRoom(Exception):
    """As many sessions are open as may be."""


@dataclass(slots=True)
class _Session:
    """``used``: when its last call ended (loop time); ``lock`` keeps its calls one after the other."""

    sandbox: Sandbox | None = None
    used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sessions:
    """A few sandboxes that wait for code (``warm``), and those of open sessions (at most ``max_sessions``).

    A session without a call for ``idle_s`` seconds is ended. ``restart`` makes a new fork server where the old
    one died.
    """

    def __init__(
        self, server: ForkServer, restart: Callable[[], ForkServer], *, warm: int, max_sessions: int, idle_s: float
    ) -> None:
        self._server, self._restart = server, restart
        self._count, self._max_sessions, self._idle_s = warm, max_sessions, idle_s
        self._warm: deque[asyncio.Task[Sandbox]] = deque()
        self._open: dict[str, _Session] = {}
        self._reaped: OrderedDict[str, None] = OrderedDict()  # names of those that idled too long
        self._reaper: asyncio.Task[None] | None = None
        self._restarting = asyncio.Lock()

    @property
    def open(self) -> int:
        return len(self._open)

    async def run_alone(self, code: str, stdin: str) -> Outcome:
        """Run in a fresh sandbox that ends with the call. Raises SandboxBroken."""
        return await (await self._take()).run(code, stdin, keep=False)

    async def run(self, name: str, code: str, stdin: str) -> tuple[Outcome, bool]:
        """Run in the session's sandbox, made where there is none. The flag says that an earlier one idled too long.

        Raises NoRoom, SandboxBroken.
        """
        session = self._open.get(name)
        if session is None:
            if len(self._open) >= self._max_sessions:
                raise NoRoom(f"{len(self._open)} sessions are open, which is all that python.max_sessions allows")
            session = self._open[name] = _Session()
        reaped = name in self._reaped
        self._reaped.pop(name, None)
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().create_task(self._reap())
        async with session.lock:
            try:
                if session.sandbox is None:
                    session.sandbox = await self._take()
                elif session.sandbox.exited.done():
                    await session.sandbox.end()
                    # what the code had is lost, and no call of its own was the cause
                    raise SandboxBroken("the session's interpreter died between two calls")
                outcome = await session.sandbox.run(code, stdin, keep=True)
            except BaseException:
                if self._open.get(name) is session:
                    del self._open[name]
                raise
            session.used = asyncio.get_running_loop().time()
            if session.sandbox.exited.done():
                session.sandbox = None
        return outcome, reaped

    async def end(self, name: str) -> None:
        """End a session and everything in it; fine where there is none."""
        session = self._open.pop(name, None)
        self._reaped.pop(name, None)
        if session is None:
            return
        if session.sandbox is not None:
            await session.sandbox.kill()  # amid a call too, which ends by it
        async with session.lock:
            if session.sandbox is not None:
                await session.sandbox.end()

    async def close(self) -> None:
        """End everything, the fork server too."""
        if self._reaper is not None:
            self._reaper.cancel()
        for name in list(self._open):
            await self.end(name)
        await self._end_warm()
        await asyncio.to_thread(self._server.close)

    async def _take(self) -> Sandbox:
        """One of the waiting sandboxes; another is made meanwhile for whoever comes next."""
        if not self._server.alive:
            await self._renew()
        loop = asyncio.get_running_loop()
        while True:
            while len(self._warm) <= self._count:
                self._warm.append(loop.create_task(self._server.spawn()))
            taken = self._warm.popleft()
            try:
                sandbox = await asyncio.shield(taken)
            except asyncio.CancelledError:
                self._warm.append(taken)  # our caller left: what it was given goes back to the others
                raise
            if not sandbox.exited.done():
                return sandbox
            await sandbox.end()

    async def _end_warm(self) -> None:
        waiting = await asyncio.gather(*self._warm, return_exceptions=True)
        self._warm.clear()
        for sandbox in waiting:
            if isinstance(sandbox, Sandbox):
                await sandbox.end()

    async def _renew(self) -> None:
        async with self._restarting:
            if self._server.alive:
                return
            await self._end_warm()
            await asyncio.to_thread(self._server.close)
            try:
                self._server = await asyncio.to_thread(self._restart)
            except Exception as error:
                raise SandboxBroken(f"the warm interpreter died and cannot be started again: {error}") from error

    async def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 10.0))
            for name, session in list(self._open.items()):
                if not session.lock.locked() and loop.time() - session.used > self._idle_s:
                    await self.end(name)
                    self._reaped[name] = None
                    if len(self._reaped) > REMEMBERED:
                        self._reaped.popitem(last=False)

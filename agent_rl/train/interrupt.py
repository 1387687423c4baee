"""Ctrl-C: the first one ends the run after what can be kept is kept, the second one at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any


class InterruptFlag:
    """Context in which SIGINT and SIGTERM ask the guarded work to stop.

    Rollouts in flight are cancelled (their step is done again on resume); an optimiser update is finished
    first, since it blocks the event loop.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._asked = False
        self._previous: dict[int, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._log("stopping: writing a checkpoint (again to stop without one)")
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def check(self) -> None:
        """Raise CancelledError where a stop was asked for."""
        if self._asked:
            raise asyncio.CancelledError

    async def guard(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work``; True when it ended by itself, False when it was stopped."""
        if self._asked:  # before there was a task to cancel
            work.close()
            return False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(work)
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._asked:
                raise
            return False
        finally:
            self._task = None
        return True

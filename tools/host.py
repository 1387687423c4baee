"""The tools of one server: loading them, and giving each call to its queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from tools.batcher import Batcher, HostedTool, QueueFull
from tools.metrics import Metrics
from tools.protocol import ToolCall, ToolResult


@runtime_checkable
class StatefulTool(Protocol):
    """A tool that keeps something from call to call of one session."""

    async def end_session(self, session: str) -> None: ...


LoadTools = Callable[[], Sequence[HostedTool]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server. ``max_queue`` and ``cache_entries`` hold for each tool (``cache_entries=0``: no
    cache).
    """

    max_body_bytes: int = 4 * 2**20
    max_batch: int = 64
    max_queue: int = 1024
    cache_entries: int = 10_000


class NotReady(Exception):
    """The tools are not loaded; the text says why."""


class AllRefused(Exception):
    """Every call of a request met a full queue."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class ToolHost:
    """``state`` is ``loading``, ``ready`` or ``failed``; ``failure`` is what loading raised."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.metrics = Metrics()
        self.state: Literal["loading", "ready", "failed"] = "loading"
        self.failure: BaseException | None = None
        self._batchers: dict[str, Batcher] = {}

    async def load(self, load: LoadTools) -> None:
        """Load in a thread, so that the health answer stays quick; never raises, the outcome is in
        ``state``.
        """
        try:
            tools = await asyncio.to_thread(load)
        except Exception as error:
            self.state, self.failure = "failed", error
            return
        for tool in tools:
            batcher = Batcher(
                tool,
                max_batch=tool.max_batch or self.limits.max_batch,
                max_queue=tool.max_queue or self.limits.max_queue,
                cache_entries=self.limits.cache_entries,
                observer=self.metrics,
            )
            batcher.start()
            self.metrics.watch(batcher)
            self._batchers[tool.name] = batcher
        self.state = "ready"

    async def close(self) -> None:
        for batcher in self._batchers.values():
            await batcher.stop()
            await batcher.tool.close()

    @property
    def tools(self) -> list[HostedTool]:
        return [batcher.tool for batcher in self._batchers.values()]

    def tool(self, name: str) -> HostedTool | None:
        batcher = self._batchers.get(name)
        return batcher.tool if batcher else None

    def waiting(self) -> dict[str, int]:
        return {name: batcher.waiting for name, batcher in self._batchers.items()}

    def check_ready(self) -> None:
        if self.state != "ready":
            raise NotReady(f"the tools are not ready: {self.state}")

    async def end_sessions(self, sessions: Sequence[str]) -> None:
        """Free what the tools keep for these sessions; an unknown one is no error."""
        stateful = [tool for tool in self.tools if isinstance(tool, StatefulTool)]
        await asyncio.gather(*(tool.end_session(session) for tool in stateful for session in sessions))

    async def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Answer calls of any tools, in order. Raises NotReady, ToolFailed, or AllRefused where no
        call found room.

        A full queue refuses all calls that one request has for that tool, or none of them.
        """
        self.check_ready()
        by_tool: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            by_tool.setdefault(call.tool, []).append(place)
        refusals: list[QueueFull] = []

        async def one_tool(name: str, places: list[int]) -> list[ToolResult]:
            mine = [calls[place] for place in places]
            if name not in self._batchers:
                known = ", ".join(self._batchers)
                # the name goes to a metric's label only where it is one of ours: labels are kept for ever
                return [ToolResult(call.id, "invalid", f"tool: unknown; known tools: {known}") for call in mine]
            try:
                return await self._batchers[name].submit(mine)
            except QueueFull as full:
                refusals.append(full)
                self.metrics.refused(name, len(mine))
                return [ToolResult(call.id, "overloaded", f"not started: {full}") for call in mine]

        if len(by_tool) == 1:  # as most requests are; gathering would make a task of it
            answered = [await one_tool(*one) for one in by_tool.items()]
        else:
            answered = await asyncio.gather(*(one_tool(name, places) for name, places in by_tool.items()))
        if refusals and len(refusals) == len(by_tool):
            raise AllRefused(str(refusals[0]), max(full.retry_after_s for full in refusals))
        results: dict[int, ToolResult] = {}
        for places, tool_results in zip(by_tool.values(), answered, strict=True):
            results |= dict(zip(places, tool_results, strict=True))
        return [results[place] for place in range(len(calls))]

"""One log line for each answered request (``create_app(..., access_log=True)``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tools.host import ToolHost
from tools.protocol import ToolCall, ToolResult

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Asked:
    """What one request asked for: how many calls in all, and what became of those of each tool."""

    calls: int = 0
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)


_asked: ContextVar[_Asked] = ContextVar("asked")


class AccessLog:
    """Logs method, path, status, milliseconds and client of each request, and what `LoggedHost` noted of its calls:
    never what a caller wrote into them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        asked = _Asked()
        token = _asked.set(asked)
        started = time.perf_counter()
        try:
            await self._app(scope, receive, note_status)
        except Exception:
            status = status or 500  # answered by Starlette, outside of this
            raise
        finally:
            _asked.reset(token)
            # A dictionary, so that also in a text log its repr keeps what a client wrote (a newline in a path) from
            # looking like a line of its own
            log.info(
                {
                    "message": "answered",
                    "method": scope["method"],
                    "path": scope["path"][:200],  # without the query string: people put secrets there
                    "status": status,
                    "ms": round(1000 * (time.perf_counter() - started), 2),
                    "client": scope["client"][0] if scope.get("client") else None,
                    "calls": asked.calls,
                    "tools": asked.tools,
                }
            )


class LoggedHost(ToolHost):
    """Notes how the calls of the request under way went, for its line. Seconds are those of the slowest call."""

    async def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        asked = _asked.get()
        asked.calls += len(calls)
        for call in calls:
            if self.tool(call.tool) is not None:  # else the name is the caller's own words
                noted = asked.tools.setdefault(call.tool, {"calls": 0, "cached": 0, "queued_s": 0.0, "run_s": 0.0})
                noted["calls"] += 1
        results = await super().call(calls)
        for call, result in zip(calls, results, strict=True):
            if call.tool in asked.tools:
                noted = asked.tools[call.tool]
                # what ran has taken some time; an answer from the cache comes with none
                noted["cached"] += result.status == "ok" and result.elapsed_s == 0.0
                noted["queued_s"] = max(noted["queued_s"], round(result.queued_s, 6))
                noted["run_s"] = max(noted["run_s"], round(result.elapsed_s, 6))
        return results

"""A tool server inside the test's process, and a tool whose running the test controls: first-class test
code.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Hashable
from types import TracebackType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from tools.listen import bind
from tools.protocol import ToolCall, ToolResult


class RunningServer:
    """Serves ``app`` over real HTTP from a thread, on ``port`` (0: a free one), while the ``with`` block
    lasts.
    """

    def __init__(self, app: Starlette, port: int = 0) -> None:
        self._socket = bind("127.0.0.1", port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> RunningServer:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Stop at once, in the middle of whatever runs; connections are cut."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()


class EchoTool:
    """Answers with its own arguments. ``gate`` holds every batch while it is clear; ``batches`` records
    them.
    """

    name = "echo"
    description = "Answers with its arguments."
    idempotent = True
    max_batch = max_queue = None

    def __init__(self, *, run_s: float = 0.0, shared: bool = False, concurrency: int = 1) -> None:
        self.concurrency = concurrency
        self.parameters: dict[str, Any] = {"type": "object"}
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[ToolCall]] = []
        self._run_s, self._shared = run_s, shared

    def cache_key(self, call: ToolCall) -> Hashable | None:
        return repr(call.arguments) if self._shared else None

    def summary(self) -> dict[str, Any]:
        return {"kind": "echo"}

    async def close(self) -> None:
        self.gate.set()

    async def run(self, calls: list[ToolCall]) -> list[ToolResult]:
        self.batches.append(calls)
        while not self.gate.is_set():  # noqa: ASYNC110 - the gate belongs to the test's thread
            await asyncio.sleep(0.002)
        await asyncio.sleep(self._run_s)
        if any(call.arguments.get("raise") for call in calls):
            raise RuntimeError("the tool broke")
        return [ToolResult(call.id, "ok", f"echo {call.arguments.get('text')}", call.arguments) for call in calls]

"""The sql tool: one reading statement over database files given at start, its rows out.

Protected: the files (opened read-only, and only reading statements are run), other files, extensions, settings; time,
memory, rows, and the length of a value and of the answer. A statement runs in a process of its own worker, which is
killed where it goes beyond them, so that the engine's faults are not the server's. Not protected: what is in the
database is shown to whoever asks; the worker is no sandbox, should an engine itself be broken into.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from tools.protocol import InvalidArguments, ToolCall, ToolResult
from tools.sql.database import SqlUnavailable
from tools.tags import neutralise_tags

_HOME = str(Path(__file__).resolve().parents[2])
START_TIMEOUT_S = 60.0


class SqlTool:
    """``databases``: file by name; the first is the one that is asked where a call names none.

    ``workers`` statements run at once, each for ``timeout_s`` at most and in ``memory_mb`` on top of the engine.
    Raises SqlUnavailable.
    """

    name = "sql"
    description = "Runs one SELECT statement on a database and returns its rows."
    idempotent = True
    max_batch = 1

    def __init__(
        self,
        databases: Mapping[str, str],
        *,
        timeout_s: float = 10.0,
        max_rows: int = 100,
        max_query_chars: int = 10_000,
        output_bytes: int = 16_384,
        memory_mb: int = 256,
        workers: int = 4,
        max_queue: int = 1024,
    ) -> None:
        if not databases:
            raise SqlUnavailable("sql.databases is empty: give sql.databases={name: file}")
        self.concurrency, self.max_queue = workers, max_queue
        self._timeout_s, self._max_query_chars = timeout_s, max_query_chars
        settings = {
            "databases": {name: str(Path(path).resolve()) for name, path in databases.items()},
            "timeout_s": timeout_s,
            "max_rows": max_rows,
            "output_bytes": output_bytes,
            "memory_mb": memory_mb,
        }
        code = f"import sys; sys.path.insert(0, {_HOME!r}); from tools.sql.worker import main; main(sys.argv[1])"
        self._command = [sys.executable, "-P", "-c", code, json.dumps(settings)]
        self._idle: list[asyncio.subprocess.Process] = []
        self._reply_bytes = 8 * output_bytes + 65_536
        self._kinds = self._try_out()
        names = list(databases)
        self.parameters: dict[str, Any] = {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": max_query_chars,
                    "description": f"one SELECT statement; at most {max_rows} rows are returned",
                },
                "database": {"type": "string", "enum": names, "default": names[0]},
            },
            "required": ["query"],
            "additionalProperties": False,
        }

    def cache_key(self, call: ToolCall) -> Hashable | None:
        return None  # random() and the clock give another answer each time

    def summary(self) -> dict[str, Any]:
        return {"databases": self._kinds}

    async def run(self, calls: list[ToolCall]) -> list[ToolResult]:
        return [await self._run(call) for call in calls]

    async def close(self) -> None:
        for worker in self._idle:
            await _end(worker)
        self._idle.clear()

    def _try_out(self) -> dict[str, str]:
        """The kind of each database, from a worker that opened them all."""
        done = subprocess.run(
            self._command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_TIMEOUT_S
        )
        try:
            said = json.loads(done.stdout)
        except ValueError:
            raise SqlUnavailable(f"sql: the worker does not start: {done.stderr.strip()[-500:]}") from None
        if "failed" in said:
            raise SqlUnavailable(said["failed"])
        kinds: dict[str, str] = said["kinds"]
        return kinds

    async def _run(self, call: ToolCall) -> ToolResult:
        try:
            query, name = self._parse(call.arguments)
        except InvalidArguments as error:
            return ToolResult(call.id, "invalid", str(error))
        worker = self._idle.pop() if self._idle else await self._start()
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await _ask(worker, {"query": query, "database": name})
        except TimeoutError:
            await _end(worker)
            text = f"[stopped: it ran longer than {self._timeout_s:g} s]"
            return ToolResult(call.id, "timeout", text, elapsed_s=time.monotonic() - began)
        except BaseException:
            await asyncio.shield(_end(worker))  # nobody waits for it any more
            raise
        seconds = time.monotonic() - began
        if reply is None:
            await _end(worker)
            text = "query: it needed too much memory, or broke the database engine"
            return ToolResult(call.id, "error", text, elapsed_s=seconds)
        self._idle.append(worker)
        if "refused" in reply:
            return ToolResult(call.id, "error", neutralise_tags(f"query: {reply['refused']}"), elapsed_s=seconds)
        data = {"columns": reply["columns"], "rows": reply["rows"]}
        return ToolResult(call.id, "ok", neutralise_tags(reply["text"]), data, reply["truncated"], seconds)

    async def _start(self) -> asyncio.subprocess.Process:
        """A worker that has opened its databases: opening is not run time. Raises SqlUnavailable."""
        worker = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=self._reply_bytes,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                said = await _read(worker)
            if said is None or "failed" in said:
                raise SqlUnavailable(f"sql: a worker does not start: {said}")
        except BaseException:
            await asyncio.shield(_end(worker))
            raise
        return worker

    def _parse(self, arguments: dict[str, Any]) -> tuple[str, str]:
        """(query, database). Raises InvalidArguments, naming the field."""
        if unknown := sorted(set(arguments) - {"query", "database"}):
            raise InvalidArguments(f"unknown argument {unknown[0][:100]!r}; the arguments are query and database")
        if "query" not in arguments:
            raise InvalidArguments("query is missing")
        query, name = arguments["query"], arguments.get("database")
        if not isinstance(query, str):
            raise InvalidArguments("query must be a string")
        if not query.strip():
            raise InvalidArguments("query is empty")
        if len(query) > self._max_query_chars:
            raise InvalidArguments(f"query has {len(query)} characters, at most {self._max_query_chars} allowed")
        if "\0" in query:
            raise InvalidArguments("query holds a NUL character")
        names = list(self._kinds)
        name = names[0] if name is None else name
        if name not in names:
            raise InvalidArguments(f"database must be one of {', '.join(names)}")
        return query, name


async def _ask(worker: asyncio.subprocess.Process, question: dict[str, Any]) -> dict[str, Any] | None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(question).encode() + b"\n")
    return await _read(worker)


async def _read(worker: asyncio.subprocess.Process) -> dict[str, Any] | None:
    """The worker's next answer; None where it has ended."""
    assert worker.stdout is not None
    line = await worker.stdout.readline()
    answer: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
    return answer


async def _end(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
    await worker.wait()

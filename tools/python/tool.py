"""The python tool: code in, what it printed out; every call shut in by the kernel.

Protected: the network (none), the host's files (the interpreter and shared libraries are readable, a private folder
is writable, nothing else), other processes, the server's environment and memory; processor time, memory, processes,
files, output. Whatever a call started is dead when it is answered.

Not protected: the kernel itself against its own faults; other sandboxes against cache and timing side channels; the
machine against the load that the limits allow; one call of a session against an earlier one of the same session.
docs/sandbox.md tells which mechanism does what, and what is weaker without namespaces.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Hashable, Sequence
from typing import Any

from tools.protocol import InvalidArguments, Status, ToolCall, ToolResult
from tools.python.isolation import Isolated, Wanted, start_isolated
from tools.python.limits import SandboxLimits
from tools.python.sandbox import Outcome
from tools.python.sessions import NoRoom, Sessions
from tools.tags import neutralise_tags

DESCRIPTION = (
    "Runs Python code and returns what it prints, and the value of a last expression. "
    "There is no network. Definitions and files stay for later calls."
)


class PythonTool:
    """Runs code in sandboxes on this machine. Start it with :meth:`start`.

    ``workers`` calls run at once (0: one a core). With ``stateful``, calls of one session share an interpreter until
    ``end_session``, or until a limit ended it (its result says so).
    """

    name = "python"
    description = DESCRIPTION
    idempotent = False
    max_batch = 1

    def __init__(
        self,
        isolated: Isolated,
        sessions: Sessions,
        *,
        limits: SandboxLimits,
        workers: int,
        max_queue: int,
        stateful: bool,
        max_code_bytes: int,
        settings: dict[str, Any],
    ) -> None:
        self.concurrency, self.max_queue = workers, max_queue
        self._isolated, self._sessions, self._limits = isolated, sessions, limits
        self._stateful, self._max_code_bytes, self._settings = stateful, max_code_bytes, settings
        self.parameters = python_parameters(max_code_bytes)

    @classmethod
    def start(
        cls,
        *,
        isolation: Wanted = "auto",
        allow_unsafe: bool = False,
        preload: Sequence[str] = ("numpy",),
        stateful: bool = True,
        workers: int = 0,
        warm: int | None = None,
        max_sessions: int = 256,
        session_idle_s: float = 900.0,
        max_queue: int = 1024,
        max_code_bytes: int = 262_144,
        **limits: Any,
    ) -> PythonTool:
        """Start the warm interpreter and prove its isolation. ``limits``: fields of SandboxLimits.

        Raises PythonUnavailable where the isolation cannot be had.
        """
        bounds = SandboxLimits(**limits)
        workers = workers or os.cpu_count() or 1

        def start_again() -> Isolated:
            return start_isolated(isolation, bounds, preload, allow_unsafe=allow_unsafe)

        isolated = start_again()
        sessions = Sessions(
            isolated.server,
            lambda: start_again().server,
            warm=workers if warm is None else warm,
            max_sessions=max_sessions,
            idle_s=session_idle_s,
        )
        settings = {"preload": list(preload), "allow_unsafe": allow_unsafe, "workers": workers} | limits
        return cls(
            isolated,
            sessions,
            limits=bounds,
            workers=workers,
            max_queue=max_queue,
            stateful=stateful,
            max_code_bytes=max_code_bytes,
            settings=settings,
        )

    def cache_key(self, call: ToolCall) -> Hashable | None:
        return None  # the same code may print something else next time

    def summary(self) -> dict[str, Any]:
        return {
            "engine": "local",
            "isolation": self._isolated.name,
            "refused": self._isolated.refused,
            "stateful": self._stateful,
            "sessions": self._sessions.open,
            **self._settings,
        }

    async def run(self, calls: list[ToolCall]) -> list[ToolResult]:
        """Run each call (the server gives one at a time). Raises SandboxBroken where the machine fails."""
        return [await self._run(call) for call in calls]

    async def end_session(self, session: str) -> None:
        await self._sessions.end(session)

    async def close(self) -> None:
        await self._sessions.close()

    async def _run(self, call: ToolCall) -> ToolResult:
        try:
            code, stdin = parse_python(call.arguments, self._max_code_bytes)
        except InvalidArguments as error:
            return ToolResult(call.id, "invalid", str(error))
        if call.session is None or not self._stateful:
            return self._result(call.id, await self._sessions.run_alone(code, stdin), kept=False)
        try:
            outcome, idled = await self._sessions.run(call.session, code, stdin)
        except NoRoom as error:
            return ToolResult(call.id, "overloaded", f"not started: {error}")
        return self._result(call.id, outcome, kept=True, idled=idled)

    def _result(self, identity: str, outcome: Outcome, *, kept: bool, idled: bool = False) -> ToolResult:
        status, reason = self._verdict(outcome)
        text = neutralise_tags(outcome.output.text())
        notes = [f"[{reason}]"] if reason else []
        if kept and outcome.ended is not None:
            notes.append("[the session has ended: its variables and files are gone; the next call starts clean]")
        if idled:
            text = "[the session had ended: no call for too long; this call started clean]\n" + text
        if notes and text and not text.endswith("\n"):
            text += "\n"
        data: dict[str, Any] = {"output_bytes": outcome.output.total}
        if outcome.exception is not None:
            data["exception"] = outcome.exception
        if outcome.ended is not None or outcome.exception == "MemoryError":
            data["limit"] = "memory" if outcome.exception == "MemoryError" else outcome.ended
        truncated = outcome.output.truncated
        return ToolResult(identity, status, text + "\n".join(notes), data, truncated, outcome.run_s)

    def _verdict(self, outcome: Outcome) -> tuple[Status, str | None]:
        limits = self._limits
        match outcome.ended:
            case None:
                return ("ok" if outcome.exception is None else "error"), None
            case "wall":
                return "timeout", f"stopped: it ran longer than {limits.timeout_s:g} s"
            case "cpu":
                return "timeout", f"stopped: it used more than {limits.cpu_s:g} s of processor time"
            case "memory":
                return "error", f"stopped: it used more than {limits.memory_mb} MB of memory"
            case "disk":
                return "error", f"stopped: it wrote more than {limits.disk_mb} MB, or {limits.files} files"
            case "processes":
                return "error", "ended: processes that it started did not end with it"
            case "died":
                return "error", f"the interpreter ended by itself ({_how(outcome)})"


def _how(outcome: Outcome) -> str:
    status = outcome.exit.status if outcome.exit is not None else 0
    if status >= 0:
        return f"exit code {status}"
    return f"signal {signal.Signals(-status).name}" if -status in set(signal.Signals) else f"signal {-status}"


def python_parameters(max_code_bytes: int) -> dict[str, Any]:
    """JSON schema of the arguments."""
    return {
        "type": "object",
        "properties": {
            "code": {
                "type": "string",
                "minLength": 1,
                "maxLength": max_code_bytes,
                "description": "Python code to run",
            },
            "stdin": {"type": "string", "maxLength": max_code_bytes, "description": "what the code reads from stdin"},
        },
        "required": ["code"],
        "additionalProperties": False,
    }


def parse_python(arguments: dict[str, Any], max_bytes: int) -> tuple[str, str]:
    """(code, stdin). Raises InvalidArguments, naming the field."""
    if unknown := sorted(set(arguments) - {"code", "stdin"}):
        raise InvalidArguments(f"unknown argument {unknown[0][:100]!r}; the arguments are code and stdin")
    if "code" not in arguments:
        raise InvalidArguments("code is missing")
    code, stdin = arguments["code"], arguments.get("stdin")
    stdin = "" if stdin is None else stdin
    for field, value in (("code", code), ("stdin", stdin)):
        if not isinstance(value, str):
            raise InvalidArguments(f"{field} must be a string")
        try:
            size = len(value.encode("utf-8"))
        except UnicodeEncodeError:
            raise InvalidArguments(f"{field} holds characters that are not valid Unicode") from None
        if size > max_bytes:
            raise InvalidArguments(f"{field} has {size} bytes, at most {max_bytes} allowed")
    if not code.strip():
        raise InvalidArguments("code is empty")
    return code, stdin

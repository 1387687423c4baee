"""The python tool on a SandboxFusion-compatible service (``POST /run_code``), for clusters that run one.

Each call is a run of its own there: no session, and the isolation is the service's. What it does not do itself is done
here: limits on the arguments and on the output's length, and telling the code's fault from the service's.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import httpx

from tools.protocol import InvalidArguments, Status, ToolCall, ToolResult
from tools.python.output import Output
from tools.python.tool import parse_python, python_parameters
from tools.tags import neutralise_tags

# beyond the run's own limit: the way there and back, and the service's queue
ANSWER_MARGIN_S = 30.0


class RemoteFailed(Exception):
    """The service did not answer as SandboxFusion does; never the code's fault."""


class RemotePythonTool:
    """Sends code to ``url``. Call :meth:`check` once before use."""

    name = "python"
    description = "Runs Python code and returns what it prints. There is no state between calls."
    idempotent = False
    max_batch = 1

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        output_bytes: int = 16_384,
        workers: int = 32,
        max_queue: int = 1024,
        max_code_bytes: int = 262_144,
    ) -> None:
        self.url = url.rstrip("/")
        self.concurrency, self.max_queue = workers, max_queue
        self.parameters = python_parameters(max_code_bytes)
        self._timeout_s, self._memory_mb = timeout_s, memory_mb
        self._output_bytes, self._max_code_bytes = output_bytes, max_code_bytes
        self._http: httpx.AsyncClient | None = None

    def check(self) -> None:
        """Run one line there. Raises RemoteFailed."""
        with httpx.Client(trust_env=False, timeout=self._timeout_s + ANSWER_MARGIN_S) as http:
            try:
                answer = http.post(f"{self.url}/run_code", json=self._body("print(6 * 7)", ""))
            except httpx.HTTPError as error:
                raise RemoteFailed(f"python.url={self.url}: no answer ({type(error).__name__}: {error})") from error
        result = self._read("check", answer)
        if (result.status, result.text.strip()) != ("ok", "42"):
            raise RemoteFailed(f"python.url={self.url}: print(6 * 7) gave {result.status}: {result.text[:200]!r}")

    def cache_key(self, call: ToolCall) -> Hashable | None:
        return None

    def summary(self) -> dict[str, Any]:
        return {"engine": "remote", "url": self.url, "isolation": "the service's own", "stateful": False}

    async def run(self, calls: list[ToolCall]) -> list[ToolResult]:
        """Raises RemoteFailed where the service fails."""
        return [await self._run(call) for call in calls]

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _run(self, call: ToolCall) -> ToolResult:
        try:
            code, stdin = parse_python(call.arguments, self._max_code_bytes)
        except InvalidArguments as error:
            return ToolResult(call.id, "invalid", str(error))
        if self._http is None:
            limits = httpx.Limits(max_connections=self.concurrency)
            self._http = httpx.AsyncClient(trust_env=False, limits=limits, timeout=self._timeout_s + ANSWER_MARGIN_S)
        try:
            answer = await self._http.post(f"{self.url}/run_code", json=self._body(code, stdin))
        except httpx.HTTPError as error:
            raise RemoteFailed(f"{self.url}: {type(error).__name__}: {error}") from error
        return self._read(call.id, answer)

    def _body(self, code: str, stdin: str) -> dict[str, Any]:
        return {
            "code": code,
            "stdin": stdin,
            "language": "python",
            "run_timeout": self._timeout_s,
            "memory_limit_MB": self._memory_mb,
        }

    def _read(self, identity: str, answer: httpx.Response) -> ToolResult:
        try:
            body = answer.json()
            verdict, run = body["status"], body.get("run_result") or {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RemoteFailed(f"{self.url} answered {answer.status_code}: {answer.text[:200]!r}") from None
        if answer.status_code != 200 or verdict == "SandboxError" or not run:
            said = str(body.get("message", ""))[:200]
            raise RemoteFailed(f"{self.url} failed: {answer.status_code} {verdict} {said}")
        output = Output(self._output_bytes)
        for part in ("stdout", "stderr"):
            output.add(str(run.get(part) or "").encode("utf-8", "replace"))
        status: Status = "ok" if verdict == "Success" else "error"
        note = ""
        if run.get("status") == "TimeLimitExceeded":
            status, note = "timeout", f"[stopped: it ran longer than {self._timeout_s:g} s]"
        data = {"output_bytes": output.total, "return_code": run.get("return_code")}
        text = neutralise_tags(output.text())
        elapsed_s = float(run.get("execution_time") or 0.0)
        return ToolResult(identity, status, text + note, data, output.truncated, elapsed_s)

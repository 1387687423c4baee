"""The rollout engine's way to the tools: one client, and one pool of connections, for all trajectories.

Whatever goes wrong on the way raises an InfrastructureError; what the tool itself says, good or bad, is a
ToolResult. So a dead server can never become an observation, let alone a reward.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import time
from types import TracebackType
from typing import Any

import httpx

from agent_rl.errors import (
    InfrastructureError,
    ToolDeadlineExceeded,
    ToolOverloaded,
    ToolServerUnavailable,
    UsageError,
)
from agent_rl.rollout.breaker import Breaker, server_is_down
from agent_rl.rollout.http_pool import HttpPool
from tools.protocol import ToolResult

log = logging.getLogger(__name__)

HEALTH_TIMEOUT_S = 5.0
END_SESSION_TIMEOUT_S = 2.0
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 2.0
PROBE_EVERY_S = 0.5


class _Retry(Exception):
    """An attempt failed in a way that may pass. ``error`` is what the caller gets when time runs out."""

    def __init__(self, error: InfrastructureError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.after_s = error, after_s


class ToolClient:
    """Calls the tools of the server at ``url``. For use in one event loop at a time.

    ``call_timeout_s`` bounds a call with all its retries, ``max_connections`` the calls under way together;
    more wait for a free connection, within their own deadlines. A proxy in the environment is not used.
    """

    def __init__(
        self, url: str, *, token: str | None = None, call_timeout_s: float = 30.0, max_connections: int = 64
    ) -> None:
        self.url = url.rstrip("/")
        self._call_timeout_s, self._max_connections = call_timeout_s, max_connections
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ids = itertools.count()
        self._http: HttpPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._breaker = Breaker(self.url)
        self._idempotent: dict[str, bool] = {}  # by tool, as the server said
        self._sessions: set[str] = set()  # for which the server may keep something

    async def __aenter__(self) -> ToolClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._http is not None and self._loop is asyncio.get_running_loop():
            await self._http.aclose()
        self._http = self._loop = None

    async def call(
        self, tool: str, arguments: dict[str, Any], *, session: str | None, deadline_s: float | None = None
    ) -> ToolResult:
        """Run one call and return its result, whatever its status (never ``overloaded``).

        ``deadline_s`` is the time left to the caller, in seconds; the call ends by then or by
        ``call_timeout_s``, whichever is sooner. Connection errors and a full queue are tried again until that
        time; but a call that may have run is sent again only where the tool is idempotent. Cancelling drops the
        request, and the server drops the call if it has not started.

        Raises ToolServerUnavailable (no server, or it failed), ToolOverloaded (its queue stayed full),
        ToolDeadlineExceeded (accepted, no answer in time), UsageError (token refused).
        """
        budget_s = self._call_timeout_s if deadline_s is None else min(deadline_s, self._call_timeout_s)
        ends = time.monotonic() + budget_s
        identity = str(next(self._ids))
        call = {"id": identity, "tool": tool, "arguments": arguments, "session": session}
        try:
            json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            return ToolResult(identity, "invalid", "arguments hold characters that are not valid Unicode")
        except ValueError:
            return ToolResult(identity, "invalid", "arguments hold a number that is not finite")
        backoff_s = FIRST_BACKOFF_S
        last: InfrastructureError | None = None
        while True:
            left_s = ends - time.monotonic()
            if left_s <= 0:
                raise last or ToolDeadlineExceeded(self._no_answer(tool, budget_s))
            try:
                async with asyncio.timeout(left_s):
                    return await self._guarded_attempt(call, ends)
            except TimeoutError:
                raise self._when_late(tool, budget_s) from None
            except _Retry as retry:
                last = retry.error
                # jitter: many calls fail at the same moment, and must not all come back at the same moment
                pause_s = max(retry.after_s or 0.0, backoff_s) * random.uniform(0.5, 1.5)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                if time.monotonic() + pause_s >= ends:
                    raise last from None
                await asyncio.sleep(pause_s)

    async def end_session(self, session: str) -> None:
        """Tell the server that the session's trajectory is over, where a tool may keep something for it.

        Never raises: what is not told is ended by the server itself after a while.
        """
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        body = json.dumps({"sessions": [session]})
        try:
            async with asyncio.timeout(END_SESSION_TIMEOUT_S):
                answer = await self._pool().request("POST", "/v1/end_session", body)
            if answer.status_code != 200:
                log.debug("session %s was not ended: %s", session, _said(answer))
        except (httpx.TransportError, TimeoutError) as error:
            log.debug("session %s was not ended: %r", session, error)

    async def health(self) -> dict[str, Any]:
        """The server's health answer, also while it is loading (``status`` says so).

        Raises ToolServerUnavailable where nothing answers, or where what answers is no tool server.
        """
        answer, body = await self._get("/health")
        if answer.status_code not in (200, 503) or not isinstance(body, dict) or "status" not in body:
            raise ToolServerUnavailable(
                f"what answers at {self.url} is not a tool server (/health: {answer.status_code})"
            )
        self._note(body)
        return body

    async def schemas(self) -> list[dict[str, Any]]:
        """``name``, ``description`` and ``parameters`` (JSON schema) of each tool. Raises as ``health``."""
        answer, body = await self._get("/v1/tools")
        if answer.status_code != 200 or not isinstance(body, dict) or not isinstance(body.get("tools"), list):
            raise ToolServerUnavailable(f"{self.url} does not say what its tools are (/v1/tools: {answer.status_code})")
        return body["tools"]

    async def _get(self, path: str) -> tuple[httpx.Response, Any]:
        # a connection of its own: the answer must not wait behind calls that hold all the others
        alone = HttpPool(self.url, self._headers, 1)
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                answer = await alone.request("GET", path)
            return answer, answer.json()
        except (httpx.TransportError, TimeoutError, ValueError) as error:
            raise ToolServerUnavailable(server_is_down(self.url, error)) from error
        finally:
            await alone.aclose()

    async def _guarded_attempt(self, call: dict[str, Any], ends: float) -> ToolResult:
        probing = await self._breaker.pass_through()
        try:
            return await self._attempt(call, ends)
        except _Retry:
            if probing:  # keep the turn for a moment: this is what spaces the probes
                await asyncio.sleep(PROBE_EVERY_S)
            raise
        finally:
            if probing:
                self._breaker.release()

    async def _attempt(self, call: dict[str, Any], ends: float) -> ToolResult:
        tool, sent = call["tool"], False
        try:
            await self._learn(tool)
            if call["session"] is not None and not self._idempotent.get(tool, True):
                self._sessions.add(call["session"])
            body = json.dumps({"calls": [call | {"deadline_s": max(ends - time.monotonic(), 0.001)}]})
            sent = True
            answer = await self._pool().request("POST", "/v1/call", body)
        except httpx.TransportError as error:
            self._breaker.failed(error)
            if sent and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                self._check_repeatable(tool, error)
            raise _Retry(ToolServerUnavailable(server_is_down(self.url, error))) from error
        status = answer.status_code
        if status >= 500:
            failure = ToolServerUnavailable(f"the tool server at {self.url} answered {_said(answer)}")
            if status == 503:  # still loading, or stopping; any other failure is that of one tool
                self._breaker.failed(failure)
            else:
                self._check_repeatable(tool, failure)
            raise _Retry(failure)
        self._breaker.worked()
        if status == 429:
            raise _Retry(
                ToolOverloaded(f"the tool server at {self.url} stayed overloaded: {_said(answer)}"),
                after_s=_retry_after_s(answer),
            )
        if status == 401:
            raise UsageError(f"the tool server at {self.url} refused the token; give both sides the same token_file")
        if status == 413:
            return ToolResult(call["id"], "invalid", "the arguments are too long")
        if status != 200:
            raise ToolServerUnavailable(f"the tool server at {self.url} did not accept a call: {_said(answer)}")
        return self._read(answer, call["id"])

    async def _learn(self, tool: str) -> None:
        """Find out, once, whether a call of this tool may be sent twice. Raises httpx.TransportError."""
        if tool not in self._idempotent:
            answer = await self._pool().request("GET", "/health")
            try:
                self._note(answer.json())
            except (ValueError, AttributeError):
                return  # no tool server: the call itself will say so

    def _note(self, health: dict[str, Any]) -> None:
        for name, summary in health.get("tools", {}).items():
            self._idempotent[name] = bool(summary.get("idempotent", True))

    def _check_repeatable(self, tool: str, error: Exception) -> None:
        """Raise where the call may have run and must not run twice: a tool with state would see it a second time,
        or, where its server died, without what came before."""
        if not self._idempotent.get(tool, True):
            raise ToolServerUnavailable(
                f"{tool} failed after it was called, and is not called twice: {error}"
            ) from error

    def _read(self, answer: httpx.Response, identity: str) -> ToolResult:
        try:
            (raw,) = answer.json()["results"]
            result = ToolResult(**raw)
        except (ValueError, KeyError, TypeError) as error:
            raise ToolServerUnavailable(f"what answers at {self.url} is not a tool server: {error}") from error
        if result.id != identity:
            raise ToolServerUnavailable(f"the tool server at {self.url} answered call {result.id}, not {identity}")
        if result.status == "overloaded":
            raise _Retry(ToolOverloaded(f"the tool server at {self.url} did not start the call: {result.text}"))
        return result

    def _pool(self) -> HttpPool:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("a ToolClient is in use in another event loop; make one client for each loop")
            # connections of a closed loop (an earlier asyncio.run) are dead: start with fresh ones
            self._loop = loop
            self._http = HttpPool(self.url, self._headers, self._max_connections)
        return self._http

    def _when_late(self, tool: str, budget_s: float) -> InfrastructureError:
        # while the server is down most calls only wait for their turn to try it: they were never accepted
        if self._breaker.down:
            return ToolServerUnavailable(server_is_down(self.url, None))
        return ToolDeadlineExceeded(self._no_answer(tool, budget_s))

    def _no_answer(self, tool: str, budget_s: float) -> str:
        return f"{tool}: no answer from the tool server at {self.url} within {budget_s:.1f} s"


def _said(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:300]}"


def _retry_after_s(answer: httpx.Response) -> float | None:
    try:
        body = answer.json()
        # the header has whole seconds only; the body says it finer
        return min(float(body["retry_after_s"]), MAX_BACKOFF_S)
    except (ValueError, KeyError, TypeError):
        return None

"""The HTTP face of the tools. See docs/tools.md for the requests and answers.

Starlette alone: bodies are parsed by our own records, and every search would pay for what FastAPI adds to a route
(0.65 ms of processor time a request with it, 0.56 without).
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tools.access_log import AccessLog, LoggedHost
from tools.batcher import ToolFailed
from tools.host import AllRefused, LoadTools, NotReady, ServerLimits, ToolHost
from tools.protocol import InvalidArguments, ToolCall
from tools.search import SearchTool
from tools.wire import BadRequest, CallRequest, EndSessionRequest, RetrieveRequest, parse_body, result_json

Answer = TypeVar("Answer")


class ClientGone(Exception):
    """The client closed the connection before its answer was there."""


def create_app(
    load: LoadTools,
    limits: ServerLimits | None = None,
    *,
    token: str | None = None,
    access_log: bool = False,
    when_loaded: Callable[[ToolHost], None] | None = None,
) -> Starlette:
    """An app that loads its tools in the background; until then it answers 503 and ``/health`` says
    "loading".

    With ``token``, everything but ``/health`` needs ``Authorization: Bearer <token>``. ``access_log``: one log line for
    each answered request. ``when_loaded`` is called once, when loading ended well or badly (see ``ToolHost.state``).
    ``app.state.host`` is the host.
    """
    host = (LoggedHost if access_log else ToolHost)(limits or ServerLimits())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async def load_and_tell() -> None:
            await host.load(load)
            if when_loaded is not None:
                when_loaded(host)

        loading = asyncio.create_task(load_and_tell())
        yield
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await host.close()

    app = Starlette(routes=_routes(host), exception_handlers=_error_answers(), lifespan=lifespan)
    app.state.host = host
    if token is not None:
        app.add_middleware(_BearerToken, token=token)
    if access_log:
        app.add_middleware(AccessLog)  # the last one added is the first that a request meets: refusals are logged too
    return app


def _routes(host: ToolHost) -> list[Route]:
    async def health(_: Request) -> Response:
        body: dict[str, Any] = {"status": host.state, "waiting": host.waiting()}
        if host.failure is not None:
            body["reason"] = str(host.failure)
        body["tools"] = {tool.name: {"idempotent": tool.idempotent, **tool.summary()} for tool in host.tools}
        if "search" in body["tools"]:
            body["index"] = body["tools"]["search"]
        return JSONResponse(body, status_code=200 if host.state == "ready" else 503)

    async def metrics(_: Request) -> Response:
        return Response(host.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def tools(_: Request) -> Response:
        host.check_ready()
        return JSONResponse(
            {
                "tools": [
                    {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                        "idempotent": tool.idempotent,
                    }
                    for tool in host.tools
                ]
            }
        )

    async def call(request: Request) -> Response:
        host.check_ready()
        asked = parse_body(CallRequest, await _body(request, host.limits.max_body_bytes))
        if len(asked.calls) > host.limits.max_queue:
            raise BadRequest(422, f"calls: {len(asked.calls)} given, at most {host.limits.max_queue} allowed")
        calls = [wire.tool_call() for wire in asked.calls]
        results = await _while_connected(request, host.call(calls))
        return _json({"results": [result_json(result) for result in results]})

    async def end_session(request: Request) -> Response:
        host.check_ready()
        asked = parse_body(EndSessionRequest, await _body(request, host.limits.max_body_bytes))
        await host.end_sessions(asked.sessions)
        return JSONResponse({"ended": len(asked.sessions)})

    async def retrieve(request: Request) -> Response:
        host.check_ready()
        asked = parse_body(RetrieveRequest, await _body(request, host.limits.max_body_bytes))
        calls = _retrieve_calls(asked, host)
        results = await _while_connected(request, host.call([call for call in calls if call is not None]))
        answered = iter(results)
        lists: list[list[dict[str, Any]]] = []
        for call in calls:
            if call is None:
                lists.append([])
                continue
            result = next(answered)
            if result.status == "overloaded":
                raise NotReady(result.text)
            hits = result.data["results"][0]["hits"] if result.status == "ok" else []
            lists.append([_retrieved(hit, asked.return_scores) for hit in hits])
        return _json({"result": lists})

    # those that are asked most come first: they are tried in order
    return [
        Route("/v1/call", call, methods=["POST"]),
        Route("/retrieve", retrieve, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/v1/end_session", end_session, methods=["POST"]),
        Route("/v1/tools", tools, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _json(body: dict[str, Any]) -> Response:
    """As JSONResponse does it, in a third of the time."""
    return Response(to_json(body), media_type="application/json")


def _retrieve_calls(asked: RetrieveRequest, host: ToolHost) -> list[ToolCall | None]:
    """One call per query; None for an empty one, which finds nothing. Raises BadRequest, naming the field."""
    search = host.tool("search")
    if not isinstance(search, SearchTool):
        raise BadRequest(404, "this server has no search tool")
    if len(asked.queries) > host.limits.max_queue:
        raise BadRequest(422, f"queries: {len(asked.queries)} given, at most {host.limits.max_queue} allowed")
    try:
        arguments = {} if asked.topk is None else {"top_k": search.check_top_k(asked.topk, "topk")}
        calls: list[ToolCall | None] = []
        for place, query in enumerate(asked.queries):
            if query.strip():
                search.check_query(query, f"queries[{place}]")
                calls.append(ToolCall(str(place), "search", {"query": query, **arguments}))
            else:
                calls.append(None)
    except InvalidArguments as error:
        raise BadRequest(422, str(error)) from None
    return calls


def _retrieved(hit: dict[str, Any], with_score: bool) -> dict[str, Any]:
    title, text = hit["title"], hit["text"]
    document = {"id": hit["id"], "contents": f'"{title}"\n{text}' if title else text}
    return {"document": document, "score": hit["score"]} if with_score else document


async def _body(request: Request, limit: int) -> bytes:
    """The request's body, read only as far as it is allowed to be long. Raises BadRequest 413 or 415,
    ClientGone.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # a web page may post text/plain to a loopback address without asking; JSON it may not
        raise BadRequest(415, f"Content-Type is {kind!r}, must be application/json")
    body, more = bytearray(), True
    while more:  # not request.stream(): a generator costs every search a little
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise BadRequest(413, f"body: longer than {limit} bytes; send fewer calls per request")
        more = message.get("more_body", False)
    return bytes(body)


async def _while_connected(request: Request, work: Awaitable[Answer]) -> Answer:
    """Await ``work``, and cancel it where the client goes away. Raises ClientGone.

    One task a request beside the request's own, and nothing that gathers: every search pays for this.
    """
    me = asyncio.current_task()
    assert me is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        # after the body, the only thing left to receive is that the client went away
        await request.receive()
        gone = True
        me.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if gone and me.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watching.cancel()


def _error_answers() -> dict[Any, Any]:
    """What a handler raised, as an answer; by exception class."""

    async def bad_request(_: Request, error: BadRequest) -> Response:
        # the rest of an oversized body is not read: the connection cannot be used again
        headers = {"Connection": "close"} if error.status == 413 else None
        return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)

    async def no_such_request(request: Request, error: HTTPException) -> Response:
        text = f"{request.method} {request.url.path[:200]}: {error.detail}"
        return JSONResponse({"error": text}, status_code=error.status_code, headers=error.headers)

    async def refused(_: Request, error: AllRefused) -> Response:
        return JSONResponse(
            {"error": str(error), "retry_after_s": round(error.retry_after_s, 3)},
            status_code=429,
            headers={"Retry-After": str(math.ceil(error.retry_after_s))},
        )

    async def not_ready(_: Request, error: NotReady) -> Response:
        return JSONResponse({"error": str(error)}, status_code=503, headers={"Retry-After": "1"})

    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def failed(_: Request, error: ToolFailed) -> Response:
        return JSONResponse({"error": f"the tool failed: {error}"}, status_code=500)

    return {
        BadRequest: bad_request,
        HTTPException: no_such_request,
        AllRefused: refused,
        NotReady: not_ready,
        ClientGone: gone,
        ToolFailed: failed,
    }


class _BearerToken:
    """Refuses requests without the token, before their body is read. ``/health`` stays open for probes."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            # constant time: how long a refusal takes must not tell how much of a guess was right
            if not hmac.compare_digest(given, self._expected):
                answer = JSONResponse(
                    {"error": "Authorization: a bearer token is needed, and it must be the server's"},
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

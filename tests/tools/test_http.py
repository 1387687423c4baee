"""The tool server over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from retrieval_index.errors import IndexIncomplete
from retrieval_index.retriever import Retriever
from retrieval_index.testing import HashedWordsEncoder
from tools.app import create_app
from tools.host import ServerLimits
from tools.search import SearchTool
from tools.testing import EchoTool, RunningServer


@contextmanager
def _ready(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=10) as client:
        for _ in range(500):
            if client.get("/health").status_code == 200:
                break
            time.sleep(0.01)
        yield client


@pytest.fixture
def echo():
    return EchoTool()


LIMITS = ServerLimits(max_body_bytes=20_000, max_batch=4, max_queue=8)


@pytest.fixture
def http(search_tool, echo):
    """A server of the test's own, for tests that hold it up or count what it did."""
    with RunningServer(create_app(lambda: [search_tool, echo], LIMITS)) as server, _ready(server) as client:
        yield client
        echo.gate.set()


@pytest.fixture(scope="module")
def shared_http(index_folder):
    """One server for the tests that only ask."""
    tools = [SearchTool(Retriever.open(index_folder, HashedWordsEncoder())), EchoTool()]
    with RunningServer(create_app(lambda: tools, LIMITS)) as server, _ready(server) as client:
        yield client


def _echo(text: str, **more) -> dict:
    return {"id": text, "tool": "echo", "arguments": {"text": text}, **more}


def test_calls_are_answered_in_order_whatever_their_tool(shared_http):
    calls = [
        _echo("a"),
        {"id": "s", "tool": "search", "arguments": {"query": "Peru", "top_k": 1}},
        _echo("b"),
    ]
    results = shared_http.post("/v1/call", json={"calls": calls}).json()["results"]
    assert [r["id"] for r in results] == ["a", "s", "b"]
    assert [r["status"] for r in results] == ["ok"] * 3
    assert results[1]["text"].startswith("Doc 1(Title: Lima)")
    assert set(results[0]) == {"id", "status", "text", "data", "truncated", "elapsed_s", "queued_s"}


def test_an_unknown_tool_is_invalid_and_names_those_there_are(shared_http):
    (result,) = shared_http.post("/v1/call", json={"calls": [_echo("a") | {"tool": "sea rch"}]}).json()["results"]
    assert result["status"] == "invalid"
    assert "search, echo" in result["text"]


def test_health_tells_the_index_and_tools_tell_their_schemas(shared_http, index_folder):
    health = shared_http.get("/health").json()
    manifest = json.loads((index_folder / "manifest.json").read_text())
    assert health["status"] == "ready"
    assert health["index"]["corpus_sha256"] == manifest["corpus_sha256"]
    assert health["index"]["passages"] == 5
    tools = {tool["name"]: tool for tool in shared_http.get("/v1/tools").json()["tools"]}
    assert tools["search"]["parameters"]["required"] == ["query"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("scores", [True, False])
def test_retrieve_has_search_r1s_shape_for_any_number_of_queries(shared_http, count, scores):
    queries = [
        "capital of Peru",
        "capital of Ecuador",
        "owls",
        "moss",
        "",
        "capital of Peru",
        "Quito",
        "Lima",
    ]
    queries = queries[:count]
    first = ["lima", "quito", "bare", "moss", None, "lima", "quito", "lima"]
    answer = shared_http.post("/retrieve", json={"queries": queries, "topk": 2, "return_scores": scores, "more": 1})
    result = answer.json()["result"]
    assert len(result) == count
    for query, documents, best in zip(queries, result, first, strict=False):
        assert len(documents) == (2 if query else 0)
        if best is None:
            continue
        if scores:
            assert set(documents[0]) == {"document", "score"}
            assert documents[0]["score"] >= documents[1]["score"]
            documents = [item["document"] for item in documents]
        assert set(documents[0]) == {"id", "contents"}
        assert documents[0]["id"] == best
    if count:
        document = result[0][0]["document"] if scores else result[0][0]
        assert document["contents"] == '"Lima"\nLima is the capital of Peru.'


def test_retrieve_without_options_gives_three_bare_documents(shared_http):
    (documents,) = shared_http.post("/retrieve", json={"queries": ["Lima"]}).json()["result"]
    assert [set(document) for document in documents] == [{"id", "contents"}] * 3


@pytest.mark.parametrize(
    ("path", "body", "status", "names"),
    [
        ("/v1/call", b"{", 422, "body"),
        ("/v1/call", b"[]", 422, "body"),
        ("/v1/call", b"\xff\xfe", 422, "body"),
        ("/v1/call", b"[" * 15_000, 422, "body"),
        ("/v1/call", b"{}", 422, "calls"),
        ("/v1/call", b'{"calls": []}', 422, "calls"),
        ("/v1/call", b'{"calls": [{"id": "1", "tool": "echo"}]}', 422, "calls[0].arguments"),
        ("/v1/call", b'{"calls": [{"id": 1, "tool": "echo", "arguments": {}}]}', 422, "calls[0].id"),
        ("/v1/call", b'{"calls": [{"id": "1", "tool": "e", "arguments": {}, "x": 1}]}', 422, "calls[0].x"),
        (
            "/v1/call",
            b'{"calls": [{"id": "1", "tool": "e", "arguments": {}, "deadline_s": NaN}]}',
            422,
            "calls[0].deadline_s",
        ),
        (
            "/v1/call",
            b'{"calls": [{"id": "1", "tool": "e", "arguments": {}, "deadline_s": -1}]}',
            422,
            "calls[0].deadline_s",
        ),
        ("/v1/call", json.dumps({"calls": [_echo(str(n)) for n in range(9)]}).encode(), 422, "calls"),
        ("/v1/call", b'{"calls": [{"id": "1", "tool": "echo", "arguments": {"q": "\\ud800"}}]}', 422, "body"),
        ("/v1/call", b" " * 20_001, 413, "body"),
        ("/retrieve", b" " * 20_001, 413, "body"),
        ("/retrieve", b"{}", 422, "queries"),
        ("/retrieve", b'{"queries": "Lima"}', 422, "queries"),
        ("/retrieve", b'{"queries": ["a", 5]}', 422, "queries[1]"),
        ("/retrieve", b'{"queries": ["a"], "topk": 0}', 422, "topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": 101}', 422, "topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": 1e400}', 422, "topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": 99999999999999999999999}', 422, "topk"),
        ("/retrieve", json.dumps({"queries": ["a"] * 9}).encode(), 422, "queries"),
        ("/retrieve", json.dumps({"queries": ["a", "b" * 2001]}).encode(), 422, "queries[1]"),
    ],
)
def test_a_bad_request_is_4xx_and_names_the_field(shared_http, path, body, status, names):
    answer = shared_http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert names in answer.json()["error"]
    assert shared_http.get("/health").status_code == 200


def test_a_body_without_end_is_cut_off(shared_http):
    def endless():
        while True:
            yield b" " * 4096

    try:
        status = shared_http.post(
            "/retrieve", content=endless(), headers={"Content-Type": "application/json"}
        ).status_code
    except httpx.TransportError:  # the server may close before the client has read its answer
        status = 413
    assert status == 413
    assert shared_http.get("/health").status_code == 200


def test_what_a_web_page_may_post_unasked_is_refused(shared_http):
    answer = shared_http.post("/v1/call", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


def test_a_full_queue_answers_429_at_once_and_health_stays_quick(http, echo):
    echo.gate.clear()
    with ThreadPoolExecutor(16) as pool:
        held = [pool.submit(http.post, "/v1/call", json={"calls": [_echo(str(n))]}) for n in range(9)]
        while http.get("/health").json()["waiting"]["echo"] < 8:
            time.sleep(0.005)
        started = time.monotonic()
        refused = http.post("/v1/call", json={"calls": [_echo("x")]})
        assert time.monotonic() - started < 0.5
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["retry_after_s"] > 0
        beside = [_echo("y"), {"id": "s", "tool": "search", "arguments": {"query": "Peru"}}]
        mixed = http.post("/v1/call", json={"calls": beside}).json()["results"]
        assert [r["status"] for r in mixed] == ["overloaded", "ok"]
        answers = [http.get("/health") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 5
        # The quickest, for the machine may be busy with other tests; behind the held calls none would come at all.
        assert min(answer.elapsed.total_seconds() for answer in answers) < 0.1
        echo.gate.set()
        assert [call.result().json()["results"][0]["status"] for call in held] == ["ok"] * 9
    text = http.get("/metrics").text
    assert 'tool_calls_refused_total{tool="echo"} 2.0' in text
    assert 'tool_calls_total{cached="false",status="ok",tool="echo"} 9.0' in text


def test_the_calls_of_a_client_that_left_are_dropped(http, echo):
    echo.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(http.post, "/v1/call", json={"calls": [_echo("held")]})
        while not echo.batches:
            time.sleep(0.005)
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/call", json={"calls": [_echo("gone")]}, timeout=0.1)
        for _ in range(400):
            if http.get("/health").json()["waiting"]["echo"] == 0:
                break
            time.sleep(0.005)
        echo.gate.set()
        held.result()
    assert [call.arguments["text"] for batch in echo.batches for call in batch] == ["held"]


def test_a_tool_that_breaks_is_an_error_of_the_server_not_an_observation(http, caplog):
    caplog.set_level(logging.CRITICAL)
    call = {"id": "1", "tool": "echo", "arguments": {"raise": True}}
    answer = http.post("/v1/call", json={"calls": [call]})
    assert answer.status_code == 500
    assert "results" not in answer.json()
    assert http.post("/v1/call", json={"calls": [_echo("next")]}).status_code == 200


def test_64_clients_each_get_their_own_answer(search_tool, index_folder):
    words = ("Lima", "Quito", "moss", "owls", "toads", "capital", "stones")
    queries = [f"{words[n % 7]} {words[n % 5]} number {n}" for n in range(64)]
    direct = Retriever.open(index_folder, HashedWordsEncoder()).search(queries, 5)
    with RunningServer(create_app(lambda: [search_tool])) as server, _ready(server):

        def client(number: int) -> list[dict]:
            call = {"tool": "search", "arguments": {"query": queries[number], "top_k": 5}}
            results = []
            with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as mine:
                for turn in range(4):
                    body = {"calls": [call | {"id": f"{number}.{turn}"}]}
                    results += mine.post("/v1/call", json=body).json()["results"]
            return results

        with ThreadPoolExecutor(64) as pool:
            answered = list(pool.map(client, range(64)))
    for number, results in enumerate(answered):
        assert [result["id"] for result in results] == [f"{number}.{turn}" for turn in range(4)]
        for result in results:
            (found,) = result["data"]["results"]
            assert found["query"] == queries[number]
            assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in direct[number]]
            assert [hit["score"] for hit in found["hits"]] == pytest.approx([h.score for h in direct[number]], abs=1e-6)


def test_a_token_is_needed_for_everything_but_health(search_tool):
    with RunningServer(create_app(lambda: [search_tool], token="s3cret")) as server, _ready(server) as client:
        body = {"queries": ["Lima"]}
        for header in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
            assert client.post("/retrieve", json=body, headers=header).status_code == 401
            assert client.get("/metrics", headers=header).status_code == 401
        assert client.post("/retrieve", json=body, headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_while_loading_health_says_so_and_calls_get_503(search_tool):
    gate = threading.Event()

    def load():
        gate.wait(10)
        return [search_tool]

    with RunningServer(create_app(load)) as server:
        health = httpx.get(f"{server.url}/health", trust_env=False)
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        call = httpx.post(f"{server.url}/retrieve", json={"queries": ["Lima"]}, trust_env=False)
        assert call.status_code == 503
        gate.set()
        with _ready(server) as client:
            assert client.get("/health").json()["status"] == "ready"


def test_a_failed_load_is_told_by_health():
    told = threading.Event()

    def load():
        raise IndexIncomplete("index.faiss is missing")

    with RunningServer(create_app(load, when_loaded=lambda _: told.set())) as server:
        told.wait(5)
        health = httpx.get(f"{server.url}/health", trust_env=False)
        assert health.status_code == 503
        assert health.json()["reason"] == "index.faiss is missing"


def test_half_a_request_does_not_stop_the_server(shared_http):
    with socket.create_connection((shared_http.base_url.host, shared_http.base_url.port)) as half:
        half.sendall(
            b"POST /v1/call HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        )
        assert shared_http.post("/v1/call", json={"calls": [_echo("a")]}).status_code == 200


async def test_a_client_that_leaves_amid_its_body_is_no_error_of_the_server():
    """What an app raises, the server logs with its traceback."""
    loaded = asyncio.Event()
    app = create_app(lambda: [EchoTool()], LIMITS, when_loaded=lambda _: loaded.set())
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/call", "headers": headers, "query_string": b""}
    async with app.router.lifespan_context(app):
        await loaded.wait()
        await app(scope, receive, send)
    assert sent[0]["status"] == 499  # nobody reads it


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nope", 404), ("GET", "/v1/call", 405)])
def test_what_there_is_not_is_an_error_like_any_other(shared_http, method, path, status):
    answer = shared_http.request(method, path)
    assert answer.status_code == status
    assert path in answer.json()["error"]

"""The benchmark of retrieval: its clients count what they should, and its servers give the same answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agent_rl.bench.load import Load, load, probe_health, quantile_ms
from agent_rl.bench.retrieval import bench_retrieval
from agent_rl.bench.retrieval_servers import server
from agent_rl.config.schema import BenchRetrievalConfig
from agent_rl.errors import UsageError
from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage
from retrieval_index.encoder import EncoderSpec
from retrieval_index.fetch import MINILM, is_fetched
from tools.testing import RunningServer


def _document(query: str) -> list[dict[str, object]]:
    return [{"document": {"id": "0", "contents": f"about {query}"}, "score": 1.0}]


class Service:
    """Answers as /retrieve does. ``busy`` first requests get 429; a query `bad` gets one answer too few."""

    def __init__(self, busy: int = 0) -> None:
        self.busy, self.bodies, self.now, self.most = busy, [], 0, 0
        self.app = Starlette(
            routes=[Route("/retrieve", self.retrieve, methods=["POST"]), Route("/health", self.health)]
        )

    async def health(self, _: Request) -> JSONResponse:
        return JSONResponse({})

    async def retrieve(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.busy:
            self.busy -= 1
            return JSONResponse({"error": "full"}, 429, {"Retry-After": "0"})
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1
        return JSONResponse({"result": [_document(query) for query in body["queries"] if query != "bad"]})


def test_so_many_clients_send_one_request_each_at_a_time() -> None:
    service = Service()
    with RunningServer(service.app) as running:
        seen = asyncio.run(
            load(running.url, ["a", "b", "c"], clients=5, seconds=0.3, cpu_s=lambda: float(len(service.bodies)))
        )
    assert service.most == 5
    assert seen.queries == len(seen.took) == len(service.bodies) - 5  # beside the requests that connect
    assert not seen.errors
    assert not seen.refused
    assert min(seen.took) >= 0.02
    assert seen.cpu_s == seen.queries  # a second a request, without those that connect
    assert seen.queries_per_s == pytest.approx(seen.queries / seen.seconds)
    assert {body["topk"] for body in service.bodies} == {3}


def test_a_refusal_is_obeyed_and_a_wrong_answer_is_an_error() -> None:
    service = Service(busy=3)
    with RunningServer(service.app) as running:
        seen = asyncio.run(load(running.url, ["a"], clients=1, seconds=0.1, warm_up=False))
        assert (seen.refused, seen.errors) == (3, [])
        wrong = asyncio.run(load(running.url, ["a", "bad"], clients=1, seconds=0.1, batch=2, warm_up=False))
    assert wrong.errors
    assert "2 queries were answered by" in wrong.errors[0]
    assert wrong.queries == 0
    gone = asyncio.run(load(running.url, ["a"], clients=1, seconds=0.05, warm_up=False))
    assert gone.errors
    assert "Connect" in gone.errors[0]


def test_health_is_timed() -> None:
    with RunningServer(Service().app) as running:
        took = probe_health(running.url, 0.3)
        assert 2 <= len(took) <= 6
        assert 0 < max(took) < 0.3
    with RunningServer(Starlette()) as running, pytest.raises(ValueError, match="/health: 404"):
        probe_health(running.url, 0.1)
    with pytest.raises(httpx.ConnectError):
        probe_health(running.url, 0.1)


def test_quantiles_and_rounds() -> None:
    assert quantile_ms([0.003, 0.001, 0.002], 0.5) == 2.0
    assert quantile_ms([0.001, 0.002], 0.99) == 2.0
    both = Load(seconds=1.0, queries=10, took=[0.1])
    both.add(Load(seconds=3.0, queries=50, took=[0.2], errors=["x"]))
    assert (both.queries_per_s, both.took, both.errors) == (15.0, [0.1, 0.2], ["x"])


def test_nothing_to_measure_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ways=\\[\\] measures nothing"):
        bench_retrieval(BenchRetrievalConfig(ways=()))
    with pytest.raises(UsageError, match=r"questions=\.\.\. is not given.*no index at none"):
        bench_retrieval(BenchRetrievalConfig(ways=(), url="http://127.0.0.1:9", index="none"))
    (tmp_path / "q.jsonl").write_text('{"q": 1}\n')
    with pytest.raises(UsageError, match="a JSON object with `question`"):
        bench_retrieval(BenchRetrievalConfig(ways=(), url="http://127.0.0.1:9", questions=str(tmp_path / "q.jsonl")))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_fetched(MINILM):
        pytest.skip("minilm is not in the cache: run `agent-rl fetch minilm` first")
    out = tmp_path_factory.mktemp("bench") / "index"
    passages = [Passage(str(n), f"Town {n}", f"Town {n} was founded in the year {1500 + n}.") for n in range(60)]
    build_index(passages, EncoderSpec(path="minilm"), out, progress=False)
    return out


@pytest.mark.slow
def test_ours_and_the_peer_give_the_same_answers(index: Path, tmp_path: Path) -> None:
    asked = {"queries": [f"when was town {n} founded?" for n in range(5)], "topk": 4, "return_scores": True}
    answers = {}
    for way in ("ours_float32", "per_request_float32"):
        with server(way, str(index), 0, tmp_path) as at:
            assert at.cpu_s() > 0
            answers[way] = httpx.post(f"{at.url}/retrieve", json=asked, timeout=60, trust_env=False).json()["result"]
    for mine, theirs in zip(*answers.values(), strict=True):
        assert [hit["document"] for hit in mine] == [hit["document"] for hit in theirs]
        assert [hit["score"] for hit in mine] == pytest.approx([hit["score"] for hit in theirs], abs=1e-4)


@pytest.mark.slow
def test_the_benchmark_measures_and_says_so(index: Path, tmp_path: Path) -> None:
    out, lines = tmp_path / "figures.json", []
    ways = ("ours_float32", "per_request_float32")
    config = BenchRetrievalConfig(
        index=str(index), ways=ways, clients=(1, 32), seconds=1.5, rounds=2, bulk=128, out=str(out)
    )
    cells = {(cell.way, cell.clients): cell for cell in bench_retrieval(config, lines.append)}
    assert len(cells) == 4
    assert not any(cell.errors for cell in cells.values()), lines
    # the published ratio is far more; this machine may be busy with other tests
    assert cells["ours_float32", 32].queries_per_s > 1.2 * cells["per_request_float32", 32].queries_per_s, lines
    record = json.loads(out.read_text())
    assert len(record["in_process"]["ours_float32"]) == 2
    assert record["beside_bulk"]["ours_float32"]

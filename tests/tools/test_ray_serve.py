"""The server on a local Ray: the plain one's answers, from every replica, and nothing left of it at the end."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rl.cli import main
from agent_rl.commands import build_parser
from agent_rl.config.compose import compose
from agent_rl.errors import ConfigError
from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage
from retrieval_index.encoder import EncoderSpec
from retrieval_index.fetch import MINILM, is_fetched
from tools.listen import ServeError, bind
from tools.ray_serve import serve_on_ray
from tools.ray_startup import MAX_STARTS_EACH, Startup

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "tok3n-of-the-test"
PASSAGES = [Passage(str(n), f"Town {n}", f"The mayor of town {n} is number {n * n}.") for n in range(40)]
SLOW_SQL = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT max(i) FROM n"


@pytest.mark.parametrize("setting", ["replicas=2", "max_replicas=2"])
def test_sessions_are_not_spread_over_replicas(capsys, setting):
    assert main(["serve-tools", "engine=ray", setting, "tools=[python]", "port=8977"]) == 2
    assert "python.stateful=false" in capsys.readouterr().err


def test_without_ray_it_says_what_to_install(capsys, monkeypatch, index_folder):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["serve-tools", "engine=ray", f"index={index_folder}", "port=8977"]) == 2
    assert "pip install 'agent-rl[ray]'" in capsys.readouterr().err


def test_an_open_address_needs_a_token_on_ray_too(capsys, monkeypatch, index_folder):
    monkeypatch.delenv("AGENT_RL_TOOL_TOKEN", raising=False)
    assert main(["serve-tools", "engine=ray", f"index={index_folder}", "host=0.0.0.0"]) == 2
    assert "token_file" in capsys.readouterr().err


def test_every_setting_reaches_ray_or_is_refused(monkeypatch):
    given: dict[str, Any] = {}
    monkeypatch.setattr("tools.ray_serve.serve_on_ray", lambda tools, **settings: given.update(settings, tools=tools))
    command = ["serve-tools", "engine=ray", "replicas=3", "replica_cpus=2", "replica_gpus=0.5", "ray_address=auto"]
    args = build_parser().parse_args([*command, "max_replicas=5", "target_ongoing_requests=9"])
    args.run(args)
    assert (given["replicas"], given["replica_cpus"], given["replica_gpus"]) == (3, 2.0, 0.5)
    assert (given["max_replicas"], given["target_ongoing_requests"]) == (5, 9)
    assert set(given) == set(inspect.signature(serve_on_ray).parameters) - {"say"}
    assert set(given) == set(type(compose("serve-tools", [])).model_fields) - {"engine", "log", "access_log"}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("log=json", "engine=ray has no log: "),
        ("access_log=true", "no access_log"),
        ("port=0", "every node listens"),
        ("max_replicas=1 replicas=2", "max_replicas=1 is below replicas=2"),
    ],
)
def test_what_means_nothing_on_ray_is_refused(override, says):
    with pytest.raises(ConfigError, match=says):
        compose("serve-tools", ["engine=ray", *override.split()])


async def test_replicas_wait_for_each_other():
    startup = Startup(2)
    assert await startup.begin()
    first = asyncio.create_task(startup.loaded())
    await asyncio.sleep(0.01)
    assert not first.done()
    await asyncio.gather(first, startup.loaded())
    assert not await startup.begin()  # one that comes later loads before it is asked anything
    await startup.ready("a", "tools: sql")
    outcome = asyncio.create_task(startup.all_ready())
    await startup.ready("a", "tools: sql")  # the same again is not another
    await asyncio.sleep(0.01)
    assert not outcome.done()
    await startup.ready("b", "tools: sql")
    assert (await outcome).description == "tools: sql"


async def test_replicas_that_die_while_they_load_are_not_started_for_ever():
    startup = Startup(1)
    for _ in range(MAX_STARTS_EACH + 1):
        await startup.begin()
    assert "again and again" in (await startup.all_ready()).failure


def _free_port() -> int:
    with bind("127.0.0.1", 0) as found:
        return found.getsockname()[1]


@contextlib.contextmanager
def _process(folder: Path, *settings: str):
    pytest.importorskip(
        "ray.serve", reason="Ray Serve is not installed: pip install 'agent-rl[ray]'", exc_type=ImportError
    )
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"PYTHONPATH": str(ROOT), "AGENT_RL_TOOL_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "agent_rl.cli", "serve-tools", "engine=ray", *settings]
    with open(folder / "stderr", "w") as error:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=error,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        finally:
            process.kill()
        process.stdout.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A deployment of two replicas, and a plain server of the same settings: their addresses, and the first's process;
    what /health said meanwhile.
    """
    if not is_fetched(MINILM):
        pytest.skip("minilm is not in the cache; fetch it with `agent-rl fetch minilm`")
    folder = tmp_path_factory.mktemp("served")
    build_index(PASSAGES, EncoderSpec(dtype="float32"), folder / "i", progress=False)
    with closing(sqlite3.connect(folder / "x.db")) as made:
        made.execute("CREATE TABLE towns (name)")
    tools = ["tools=[search,sql]", "index=i", "sql.databases={main: x.db}", "sql.workers=1", "sql.max_queue=1"]
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    health: list[tuple[int, str]] = []
    plain_code = (
        "import os, sys\nfrom tools.server import serve\n"
        "serve(['search', 'sql'], index='i', port=0, sql={'databases': {'main': 'x.db'}, 'workers': 1, 'max_queue': 1})"
    )
    with _process(folder, *tools, f"port={port}", "replicas=2", "replica_cpus=0.5") as process:
        ready = ThreadPoolExecutor(1).submit(process.stdout.readline)
        while not ready.done():
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"{url}/health", trust_env=False, timeout=30)
                if answer.headers["content-type"] == "application/json":  # else it is Ray's, before there is an app
                    health.append((answer.status_code, answer.json()["status"]))
            time.sleep(0.2)
        line = ready.result()
        search = f"index: {folder / 'i'} (40 passages; encoder: torch, float32)"
        what = f"tools: search, sql  {search}  databases: main  replicas: 2"
        assert line == f"ready: {url}  {what}\n", line + (folder / "stderr").read_text()
        environment = os.environ | {"PYTHONPATH": str(ROOT), "AGENT_RL_TOOL_TOKEN": TOKEN}
        with subprocess.Popen(
            [sys.executable, "-c", plain_code], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        ) as plain:
            try:
                yield url, plain.stdout.readline().split()[1], process, health
            finally:
                plain.kill()


def _client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=60)


@pytest.mark.slow
def test_health_says_loading_until_all_are_ready(served):
    *_, health = served
    assert (503, "loading") in health
    assert set(health) <= {(503, "loading"), (200, "ready")}


@pytest.mark.slow
def test_answers_and_errors_are_those_of_the_plain_server(served):
    on_ray, plain, *_ = served
    with _client(on_ray) as one, _client(plain) as other:
        queries = [f"Who is the mayor of town {n}?" for n in range(12)]
        for query in queries:
            body = {"queries": [query, ""], "topk": 3, "return_scores": True}
            first, second = (http.post("/retrieve", json=body).json()["result"] for http in (one, other))
            assert [d["document"]["id"] for d in first[0]] == [d["document"]["id"] for d in second[0]]
            assert [d["score"] for d in first[0]] == pytest.approx([d["score"] for d in second[0]], abs=1e-4)
            assert first[1] == second[1] == []
        call = {"id": "c", "tool": "sql", "arguments": {"query": "SELECT count(*) FROM towns"}, "session": "s"}
        calls = [call, {"id": "d", "tool": "search", "arguments": {"query": queries[0]}}, call | {"tool": "nothing"}]
        answers = [http.post("/v1/call", json={"calls": calls}).json()["results"] for http in (one, other)]
        assert [[r["text"] for r in results] for results in answers] == [[r["text"] for r in answers[0]]] * 2
        assert [r["status"] for r in answers[0]] == ["ok", "ok", "invalid"]
        wrong: list[dict[str, Any]] = [
            {"url": "/v1/call", "json": {"calls": []}},
            {"url": "/v1/call", "json": {"calls": [call | {"id": 7}]}},
            {"url": "/v1/call", "content": b"{", "headers": {"Content-Type": "application/json"}},
            {"url": "/v1/call", "content": b"{}", "headers": {"Content-Type": "text/plain"}},
            {"url": "/retrieve", "json": {"queries": ["x"], "topk": 1000}},
            {"url": "/retrieve", "content": b"x" * (5 * 2**20), "headers": {"Content-Type": "application/json"}},
            {"url": "/no/such/path", "json": {}},
            {"url": "/v1/call", "json": {}, "headers": {"Authorization": "Bearer guess"}},
        ]
        for request in wrong:
            first, second = (http.post(**request) for http in (one, other))
            assert (first.status_code, first.json()) == (second.status_code, second.json()), request["url"]
            assert 400 <= first.status_code < 500


@pytest.mark.slow
def test_both_replicas_get_work(served):
    with _client(served[0]) as http, ThreadPoolExecutor(8) as threads:
        bodies = [{"queries": [f"number {n}"], "topk": 1} for n in range(100)]
        answers = list(threads.map(lambda body: http.post("/retrieve", json=body), bodies))
        assert {answer.status_code for answer in answers} == {200}
        # each replica counts for itself, and began to count at another time
        seen: dict[str, float] = {}
        for _ in range(60):
            text = http.get("/metrics").text
            labels = r'\{cached="false",status="ok",tool="search"\} (\S+)'
            created, total = (re.search(name + labels, text) for name in ("tool_calls_created", "tool_calls_total"))
            if created and total:
                seen[created[1]] = float(total[1])
    assert len(seen) == 2
    assert sum(seen.values()) >= 100


@pytest.mark.slow
def test_a_full_queue_answers_429_through_ray(served):
    with ThreadPoolExecutor(12) as threads, _client(served[0]) as http:
        call = {"id": "c", "tool": "sql"}

        def ask(n: int) -> httpx.Response:
            return http.post("/v1/call", json={"calls": [call | {"arguments": {"query": f"{SLOW_SQL} -- {n}"}}]})

        answers = list(threads.map(ask, range(12)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert len(refused) >= 4
    assert all("the queue is full" in answer.json()["error"] for answer in refused)
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)


def _replicas(process: subprocess.Popen[str]) -> list[Any]:
    import psutil

    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "ServeReplica" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.slow
def test_a_replica_that_dies_is_replaced_and_nobody_is_sent_to_one_that_loads(served):
    url, _, process, _ = served
    killed, _ = _replicas(process)
    killed.kill()
    with _client(url) as http:
        ends = time.monotonic() + 60
        n = 0
        while len(_replicas(process)) < 2 or n < 200:
            assert time.monotonic() < ends
            assert http.post("/retrieve", json={"queries": [f"after {n}"], "topk": 1}).status_code == 200
            assert http.get("/health").status_code == 200
            n += 1


@pytest.mark.slow
def test_sigterm_ends_it_and_leaves_no_process(served):  # the last that uses it
    import psutil

    process = served[2]
    assert len(_replicas(process)) == 2
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served[0]}/health", trust_env=False)


@pytest.mark.slow
def test_load_brings_another_replica(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.db")) as made:
        made.execute("CREATE TABLE towns (name)")
    port = _free_port()
    settings = ["tools=[sql]", "sql.databases={main: x.db}", f"port={port}", "max_replicas=2", "replica_cpus=0.5"]
    with _process(tmp_path, *settings, "target_ongoing_requests=2") as process:
        assert process.stdout.readline().endswith("  replicas: 1 to 2\n")
        assert len(_replicas(process)) == 1
        ends = time.monotonic() + 120

        def keep_asking(client: int) -> set[int]:
            seen, n = set(), 0
            with _client(f"http://127.0.0.1:{port}") as http:
                while len(_replicas(process)) < 2:
                    assert time.monotonic() < ends
                    call = {"id": "c", "tool": "sql", "arguments": {"query": f"{SLOW_SQL} -- {client} {n}"}}
                    seen.add(http.post("/v1/call", json={"calls": [call]}).status_code)
                    n += 1
            return seen

        with ThreadPoolExecutor(8) as threads:
            assert set().union(*threads.map(keep_asking, range(8))) == {200}


@pytest.mark.slow
def test_what_a_replica_cannot_load_ends_it_with_the_tools_own_words(tmp_path):
    with _process(tmp_path, "tools=[sql]", "sql.databases={main: none.db}", f"port={_free_port()}") as process:
        assert process.wait(timeout=120) == 2
    assert "none.db" in (tmp_path / "stderr").read_text().splitlines()[-1]


@pytest.mark.slow
def test_more_replicas_than_there_are_cores_are_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.db")) as made:
        made.execute("CREATE TABLE towns (name)")
    settings = ["tools=[sql]", "sql.databases={main: x.db}", f"port={_free_port()}", "replicas=4", "replica_cpus=4096"]
    with _process(tmp_path, *settings) as process:
        assert process.wait(timeout=120) == 2
    assert "need 16384 CPUs" in (tmp_path / "stderr").read_text()
    with bind("127.0.0.1", 0) as taken, pytest.raises(ServeError, match="another server"):
        serve_on_ray(
            ["sql"],
            index="i",
            host="127.0.0.1",
            port=taken.getsockname()[1],
            token_file=None,
            max_body_bytes=1,
            search=compose("serve-tools", []).search.model_dump(),
            python={},
            sql={},
        )

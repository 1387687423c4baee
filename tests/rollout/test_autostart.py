"""The tool server that a run starts for itself: up when the run needs it, gone afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from agent_rl.config.schema import ToolsConfig
from agent_rl.errors import ToolServerUnavailable, UsageError
from agent_rl.rollout.autostart import autostarted_tool_server
from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage
from retrieval_index.encoder import EncoderSpec
from retrieval_index.fetch import MINILM, is_fetched


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def gone_within(url: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while answers(url):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_fetched(MINILM):
        pytest.skip("minilm is not in the cache: run `agent-rl fetch minilm` first")
    out = tmp_path_factory.mktemp("autostart") / "index"
    passages = [Passage(str(n), f"Town {n}", f"Town {n} was founded in the year {1500 + n}.") for n in range(40)]
    build_index(passages, EncoderSpec(path="minilm"), out, progress=False)
    return out


@pytest.fixture
def url() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("bad", ["http://10.1.2.3:8900", "http://127.0.0.1", "http://127.0.0.1:x", "nonsense"])
def test_only_a_loopback_address_with_a_port_is_started(bad: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"tools\.url="),
        autostarted_tool_server(ToolsConfig.model_construct(url=bad, autostart=True), tmp_path / "server.log"),
    ):
        pass


def test_a_server_that_cannot_start_shows_its_own_words(tmp_path: Path, url: str) -> None:
    tools = ToolsConfig(url=url, autostart=True, index=str(tmp_path / "no-index"))
    with (
        pytest.raises(ToolServerUnavailable, match="exit code 2") as caught,
        autostarted_tool_server(tools, tmp_path / "server.log"),
    ):
        pass
    assert "no-index" in str(caught.value)


@pytest.mark.slow
def test_it_is_up_inside_and_gone_outside_whatever_happens(index: Path, tmp_path: Path, url: str) -> None:
    tools = ToolsConfig(url=url, autostart=True, index=str(index))
    log = tmp_path / "logs" / "server.log"
    query = {"queries": ["Town 7"], "topk": 1, "return_scores": True}

    def a_run_that_breaks() -> None:
        with autostarted_tool_server(tools, log):
            found = httpx.post(f"{url}/retrieve", json=query, trust_env=False).json()
            assert found["result"][0][0]["document"]["id"] == "7"
            with pytest.raises(UsageError, match="answers at"), autostarted_tool_server(tools, log):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        a_run_that_breaks()
    assert not answers(url)
    assert "ready" in log.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_it_ends_with_a_run_that_was_killed_outright(index: Path, tmp_path: Path, url: str) -> None:
    code = (
        "import time, pathlib\n"
        "from agent_rl.config.schema import ToolsConfig\n"
        "from agent_rl.rollout.autostart import autostarted_tool_server\n"
        f"tools = ToolsConfig(url={url!r}, autostart=True, index={str(index)!r})\n"
        f"with autostarted_tool_server(tools, pathlib.Path({str(tmp_path / 'server.log')!r})):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(300)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        assert answers(url)
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    assert gone_within(url, 15)

"""The servers that `agent-rl bench retrieval` compares, each a process of its own on one and the same core."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx

from agent_rl.config.schema import RetrievalWay, SearchToolConfig, ToolsConfig
from agent_rl.errors import ToolServerUnavailable
from agent_rl.rollout.autostart import autostarted_tool_server

START_S = 300.0
BATCH = 64

# How our server runs in each way that is ours: the settings of `serve-tools search.*`
OURS: dict[str, dict[str, str]] = {
    "ours_float32": {"dtype": "float32"},
    "ours_bfloat16": {"dtype": "bfloat16"},
    "ours_onnx_float32": {"dtype": "float32", "engine": "onnx"},
    "ours_openvino_float32": {"dtype": "float32", "engine": "openvino"},
    "ours_openvino_bfloat16": {"dtype": "bfloat16", "engine": "openvino"},
    "ours_openvino_int8": {"dtype": "bfloat16", "engine": "openvino_int8"},
}


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started inside keeps to ``core``, with one thread for torch and for FAISS."""
    before = os.sched_getaffinity(0)
    threads = os.environ.get("OMP_NUM_THREADS")
    os.sched_setaffinity(0, {core})
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads


@dataclass(frozen=True, slots=True)
class Server:
    """``pid`` is None where the server is not ours to look at."""

    url: str
    pid: int | None = None

    def cpu_s(self) -> float:
        """Processor seconds that it has used, all threads; NaN where that cannot be told."""
        if self.pid is None:
            return float("nan")
        # utime and stime stand 14th and 15th (proc(5)); the name before them may hold spaces
        numbers = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(way: RetrievalWay, index: str, core: int, logs: Path) -> Iterator[Server]:
    """The server ``way``, started and, at the end, stopped. Nothing of it is cached: every query of a benchmark has to
    be searched. Raises ToolServerUnavailable.
    """
    before = _children()
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        with pinned(core):
            if way in OURS:
                search = SearchToolConfig.model_validate(OURS[way] | {"cache_entries": 0})
                tools = ToolsConfig(url=url, index=index, search=search)
                stack.enter_context(autostarted_tool_server(tools, logs / f"{way}.log"))
            else:
                stack.enter_context(_per_request(index, way.removeprefix("per_request_"), port, logs / f"{way}.log"))
        (pid,) = _children() - before
        yield Server(url, pid)


def _children() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for children in lists for pid in children.read_text().split()}


@contextlib.contextmanager
def _per_request(index: str, dtype: str, port: int, log_file: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "agent_rl.bench.per_request_server", index, dtype, str(port)]
    home = str(Path(__file__).resolve().parents[2])
    with log_file.open("ab") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": home, "PYTHONSAFEPATH": "1"}
        )
    try:
        deadline = time.monotonic() + START_S
        while not _answers(f"http://127.0.0.1:{port}"):
            if child.poll() is not None or time.monotonic() > deadline:
                tail = "\n  ".join(log_file.read_text(errors="replace").splitlines()[-10:])
                raise ToolServerUnavailable(f"the per-request server did not start; the end of its log:\n  {tail}")
            time.sleep(0.2)
        yield
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


class InProcess:
    """The limit of a way of ours: encode and search in batches of 64, without a server, in a process on ``core``."""

    def __init__(self, way: str, index: str, core: int) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        with pinned(core):
            self._pool.submit(_open, index, OURS[way]).result()

    def rates(self, queries: list[str], topk: int, seconds: float) -> tuple[float, float]:
        """(queries/s, queries per processor second)."""
        return self._pool.submit(_rate, queries, topk, seconds).result()

    def close(self) -> None:
        self._pool.shutdown()


_retriever: Any = None


def _open(index: str, how: dict[str, Any]) -> None:
    global _retriever
    from retrieval_index.retriever import Retriever

    _retriever = Retriever.open(index, **how)
    _retriever.search(["warm up", "warm up twice"], 1)


def _rate(queries: list[str], topk: int, seconds: float) -> tuple[float, float]:
    began, used, done = time.perf_counter(), time.process_time(), 0
    while (spent := time.perf_counter() - began) < seconds:
        start = done % max(1, len(queries) - BATCH + 1)
        done += len(_retriever.search(queries[start : start + BATCH], topk))
    return done / spent, done / (time.process_time() - used)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

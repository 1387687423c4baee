"""`agent-rl bench sandbox`: calls of the python tool, as a rollout makes them, beside bare subprocesses.

Every way is measured in turn, round after round, on the same machine under the same load; medians of the rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_rl.config.schema import BenchSandboxConfig, PythonToolConfig, ToolsConfig
from agent_rl.rollout.autostart import autostarted_tool_server
from agent_rl.rollout.tool_client import ToolClient

CODES = {
    "trivial": ("print(6 * 7)", "42\n"),
    "numpy": ("import numpy\nprint(int(numpy.arange(1000).sum()))", "499500\n"),
}
# A bare subprocess that imports numpy takes a hundred times as long: fewer of them say as much.
SHARE = {("subprocess", "numpy"): 0.15}

Call = Callable[[str, int], Awaitable[str]]  # code, number of the caller -> what it printed


@dataclass(frozen=True, slots=True)
class Cell:
    """One way, code and number of concurrent callers. Latencies in milliseconds, over all rounds."""

    way: str
    code: str
    callers: int
    calls_per_s: float
    p50_ms: float
    p99_ms: float


def bench_sandbox(config: BenchSandboxConfig, report: Callable[[str], None] = print) -> list[Cell]:
    """Measure, report a table, and write ``config.out`` (JSON) where it is given.

    Raises ToolServerUnavailable where the python tool cannot start; RuntimeError where an answer is wrong.
    """
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:

        def start(name: str, **changes: object) -> str:
            python = PythonToolConfig.model_validate(config.python.model_dump() | changes)
            tools = ToolsConfig(url=f"http://127.0.0.1:{_free_port()}", python=python)
            stack.enter_context(autostarted_tool_server(tools, Path(folder, f"{name}.log"), ("python",)))
            return tools.url

        warm, cold = start("warm"), start("cold", warm=0)
        cells = asyncio.run(_measure(config, warm, cold, report))
    report(f"{'way':12} {'code':8} {'callers':>7} {'calls/s':>8} {'p50 ms':>8} {'p99 ms':>8}")
    for cell in cells:
        figures = f"{cell.calls_per_s:8.1f} {cell.p50_ms:8.1f} {cell.p99_ms:8.1f}"
        report(f"{cell.way:12} {cell.code:8} {cell.callers:7} {figures}")
    rate = {(cell.way, cell.code, cell.callers): cell.calls_per_s for cell in cells}
    for code in CODES:
        shown = (f"{rate['warm', code, n] / rate['subprocess', code, n]:.1f} ({n})" for n in config.concurrency)
        report(f"warm / subprocess, {code} (callers): {', '.join(shown)}")
    if config.out is not None:
        Path(config.out).write_text(json.dumps([asdict(cell) for cell in cells], indent=2) + "\n", encoding="utf-8")
    return cells


async def _measure(
    config: BenchSandboxConfig, warm_url: str, cold_url: str, report: Callable[[str], None]
) -> list[Cell]:
    most = max(config.concurrency)
    async with (
        ToolClient(warm_url, call_timeout_s=120, max_connections=most) as warm,
        ToolClient(cold_url, call_timeout_s=120, max_connections=most) as cold,
    ):
        health = (await warm.health())["tools"]["python"]
        report(f"{os.cpu_count()} cores; isolation: {health['isolation']}; {health['workers']} workers")

        def through(tools: ToolClient, session: str | None = None) -> Call:
            async def call(code: str, caller: int) -> str:
                named = None if session is None else f"{session}-{caller}"
                return (await tools.call("python", {"code": code}, session=named)).text

            return call

        ways = {
            "subprocess": _subprocess,
            "cold": through(cold),
            "warm": through(warm),
            "session": through(warm, "bench"),
        }
        rates: dict[tuple[str, str, int], list[float]] = {}
        latencies: dict[tuple[str, str, int], list[float]] = {}
        for done in range(config.rounds):
            for callers in config.concurrency:
                for code in CODES:
                    for way, call in ways.items():
                        key = (way, code, callers)
                        count = max(callers, round(config.calls * SHARE.get((way, code), 1)))
                        seconds, took = await _cell(call, code, callers, count)
                        rates.setdefault(key, []).append(count / seconds)
                        latencies.setdefault(key, []).extend(took)
            report(f"round {done + 1} of {config.rounds} done")
    return [
        Cell(*key, statistics.median(rates[key]), 1000 * _quantile(took, 0.5), 1000 * _quantile(took, 0.99))
        for key, took in latencies.items()
    ]


async def _cell(call: Call, code: str, callers: int, count: int) -> tuple[float, list[float]]:
    """Seconds in all, and of each of ``count`` calls by ``callers`` at once."""
    source, expected = CODES[code]
    left = iter(range(count))
    took: list[float] = []

    async def caller(number: int) -> None:
        for _ in left:
            began = time.perf_counter()
            printed = await call(source, number)
            took.append(time.perf_counter() - began)
            if printed != expected:
                raise RuntimeError(f"{code}: {printed[:300]!r} was printed, not {expected!r}")

    began = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    return time.perf_counter() - began, took


async def _subprocess(code: str, caller: int) -> str:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return printed.decode()


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

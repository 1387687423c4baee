"""`agent-rl bench retrieval`: clients of retrieval servers, ours beside the common per-request FastAPI server.

All servers are up at once, each pinned to the same core, and are loaded in turn, round after round. What else runs on
that core is not shared out evenly, though: a server of 40 threads gets more of a busy core than one of two. So queries
per processor second of the server are told beside queries per second: alone on a core the two are the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import httpx

from agent_rl.bench.load import Load, load, probe_health, quantile_ms
from agent_rl.bench.retrieval_servers import BATCH, OURS, InProcess, Server, server
from agent_rl.config.schema import BenchRetrievalConfig
from agent_rl.errors import UsageError
from retrieval_index.corpus import PassageStore
from retrieval_index.errors import RetrievalError
from retrieval_index.index import read_manifest


@dataclass(frozen=True, slots=True)
class Cell:
    """One server under so many clients. ``rounds`` are queries/s of each round, ``cpu_rounds`` queries per processor
    second of the server; latencies are over all of them.
    """

    way: str
    clients: int
    rounds: list[float]
    cpu_rounds: list[float]
    p50_ms: float
    p99_ms: float
    health_p99_ms: float
    refused: int
    errors: int
    first_error: str

    @property
    def queries_per_s(self) -> float:
        return statistics.median(self.rounds)

    @property
    def queries_per_cpu_s(self) -> float:
        return statistics.median(self.cpu_rounds)


def bench_retrieval(config: BenchRetrievalConfig, report: Callable[[str], None] = print) -> list[Cell]:
    """Measure, report tables, and write ``config.out`` (JSON) where it is given.

    Raises UsageError (nothing to measure, no questions), ToolServerUnavailable, RetrievalError.
    """
    if not config.ways and config.url is None:
        raise UsageError("ways=[] measures nothing; give url=http://... of a server, or leave ways out")
    queries = _queries(config)
    core = max(os.sched_getaffinity(0)) if config.core is None else config.core
    if core not in os.sched_getaffinity(0):
        raise UsageError(f"core={core} is not one of {sorted(os.sched_getaffinity(0))}, which this process may use")
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[str, Server] = {
            way: stack.enter_context(server(way, config.index, core, logs)) for way in config.ways
        }
        if config.url is not None:
            servers["url"] = Server(config.url)
        limits: dict[str, InProcess] = {}
        for way in (way for way in servers if way in OURS):
            limits[way] = InProcess(way, config.index, core)
            stack.callback(limits[way].close)
        report(f"{len(queries)} questions; servers on core {core} of {os.cpu_count()}, one thread each; nothing cached")
        prober = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
        loads, bulk, rates = _measure(config, servers, limits, queries, prober, report)
    cells = [_cell(way, clients, rounds) for (way, clients), rounds in loads.items()]
    _report_cells(cells, rates, report)
    _report_ratios(config, cells, rates, report)
    for way, singles in bulk.items():
        report(
            f"{way}: singles beside a client that sends {config.bulk} queries at once wait "
            f"{quantile_ms(singles.took, 0.5):.0f} ms (p50), {quantile_ms(singles.took, 1.0):.0f} ms at most; "
            f"{len(singles.errors)} errors"
        )
    if config.out is not None:
        record = {
            "cells": [asdict(cell) for cell in cells],
            "in_process": rates,
            "beside_bulk": {way: [1000 * took for took in singles.took] for way, singles in bulk.items()},
        }
        Path(config.out).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return cells


def _queries(config: BenchRetrievalConfig) -> list[str]:
    """Questions in a random but fixed order: lengths are to be mixed, as they come from rollouts."""
    if config.questions is not None:
        lines = Path(config.questions).read_text(encoding="utf-8").split("\n")
        try:
            found = [json.loads(line)["question"] for line in lines if line]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"questions={config.questions}: a JSON object with `question` a line is needed") from error
    else:
        try:
            read_manifest(Path(config.index))
        except RetrievalError as error:
            raise UsageError(f"questions=... is not given, and no index has titles to ask for: {error}") from error
        store = PassageStore(Path(config.index))
        step = max(1, len(store) // 2000)
        found = [store[row].title or store[row].text[:100] for row in range(0, len(store), step)]
    if not found:
        raise UsageError(f"questions={config.questions} has no question")
    random.Random(0).shuffle(found)
    return found


Loads = dict[tuple[str, int], list[Load]]
Rates = dict[str, list[tuple[float, float]]]  # of the limits: queries/s, queries per processor second


def _measure(
    config: BenchRetrievalConfig,
    servers: dict[str, Server],
    limits: dict[str, InProcess],
    queries: list[str],
    prober: ProcessPoolExecutor,
    report: Callable[[str], None],
) -> tuple[Loads, dict[str, Load], Rates]:
    loads: Loads = {}
    bulk: dict[str, Load] = {}
    rates: Rates = {}
    for done in range(config.rounds):
        # each goes first every other time
        ways = list(servers) if done % 2 == 0 else list(reversed(servers))
        for clients in config.clients:
            for way in ways:
                seen = _timed(servers[way], queries, clients, config, prober if way in OURS else None)
                loads.setdefault((way, clients), []).append(seen)
                if way in limits and clients == max(config.clients):
                    rates.setdefault(way, []).append(limits[way].rates(queries, config.topk, config.seconds))
        for way in ways if config.bulk else []:
            bulk.setdefault(way, Load()).add(asyncio.run(_beside_bulk(servers[way].url, queries, config)))
        report(f"round {done + 1} of {config.rounds} done")
    return loads, bulk, rates


def _timed(
    at: Server, queries: list[str], clients: int, config: BenchRetrievalConfig, prober: ProcessPoolExecutor | None
) -> Load:
    health = None if prober is None else prober.submit(probe_health, at.url, config.seconds)
    seen = asyncio.run(load(at.url, queries, clients=clients, seconds=config.seconds, topk=config.topk, cpu_s=at.cpu_s))
    if health is not None:
        try:
            seen.health = health.result()
        except (httpx.HTTPError, ValueError) as error:
            seen.errors.append(f"/health: {error}")
    return seen


async def _beside_bulk(url: str, queries: list[str], config: BenchRetrievalConfig) -> Load:
    """What one client with single queries sees while another sends ``config.bulk`` at once."""
    many = asyncio.create_task(
        load(url, queries, clients=1, seconds=config.seconds, batch=config.bulk, topk=config.topk)
    )
    await asyncio.sleep(0.3)
    one = await load(url, queries, clients=1, seconds=config.seconds, topk=config.topk, warm_up=False)
    one.errors += (await many).errors
    return one


def _cell(way: str, clients: int, rounds: list[Load]) -> Cell:
    whole = Load()
    for seen in rounds:
        whole.add(seen)
    return Cell(
        way,
        clients,
        [round(seen.queries_per_s, 1) for seen in rounds],
        [round(seen.queries_per_cpu_s, 1) for seen in rounds],
        quantile_ms(whole.took, 0.5),
        quantile_ms(whole.took, 0.99),
        quantile_ms(whole.health, 0.99),
        whole.refused,
        len(whole.errors),
        whole.errors[0] if whole.errors else "",
    )


def _report_cells(cells: list[Cell], rates: Rates, report: Callable[[str], None]) -> None:
    report("| server | clients | queries/s | per cpu s | p50 ms | p99 ms | /health p99 ms | errors | refused |")
    report("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for cell in sorted(cells, key=lambda cell: cell.clients):
        health = f"{cell.health_p99_ms:.0f}" if cell.way in OURS else "-"
        report(
            f"| {cell.way} | {cell.clients} | {cell.queries_per_s:.0f} | {cell.queries_per_cpu_s:.0f} | "
            f"{cell.p50_ms:.0f} | {cell.p99_ms:.0f} | {health} | {cell.errors} | {cell.refused} |"
        )
        if cell.first_error:
            report(f"first error of {cell.way}: {cell.first_error}")
    for way, pairs in rates.items():
        wall, cpu = (statistics.median(values) for values in zip(*pairs, strict=True))
        report(f"{way}, in process, batches of {BATCH}: {wall:.0f} queries/s, {cpu:.0f} per cpu s")


def _report_ratios(
    config: BenchRetrievalConfig, cells: list[Cell], rates: Rates, report: Callable[[str], None]
) -> None:
    """Of each of our servers to the per-request ones, round by round; median (range)."""
    of = {(cell.way, cell.clients): cell for cell in cells}
    for clients in config.clients:
        for way in (way for way in config.ways if way in OURS):
            ours = of[way, clients]
            for peer in (way for way in config.ways if way not in OURS):
                theirs = of[peer, clients]
                per_cpu = _ratio(ours.cpu_rounds, theirs.cpu_rounds)
                report(
                    f"{way} / {peer}, {clients} clients: {_ratio(ours.rounds, theirs.rounds)} of its queries/s, "
                    f"{per_cpu} per cpu s, {ours.p99_ms / theirs.p99_ms:.2f} of its p99"
                )
            if clients == max(config.clients):
                wall, cpu = zip(*rates[way], strict=True)
                report(
                    f"{way} / in process, {clients} clients: {_ratio(ours.rounds, wall)} of its queries/s, "
                    f"{_ratio(ours.cpu_rounds, cpu)} per cpu s"
                )


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

"""`agent-rl bench retrieval`: clients of retrieval servers, ours beside the common per-request FastAPI server.

All servers are up at once, each pinned to the same core, and are loaded in turn, round after round: whatever else the
machine does, it does to all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_rl.bench.load import Load, load, quantile_ms
from agent_rl.bench.retrieval_servers import BATCH, OURS, InProcess, server
from agent_rl.config.schema import BenchRetrievalConfig
from agent_rl.errors import UsageError
from retrieval_index.corpus import PassageStore


@dataclass(frozen=True, slots=True)
class Cell:
    """One server under so many clients. ``rounds`` are queries/s of each round; latencies are over all of them."""

    way: str
    clients: int
    rounds: list[float]
    p50_ms: float
    p99_ms: float
    health_p99_ms: float
    refused: int
    errors: int
    first_error: str

    @property
    def queries_per_s(self) -> float:
        return statistics.median(self.rounds)


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
        urls: dict[str, str] = {way: stack.enter_context(server(way, config.index, core, logs)) for way in config.ways}
        if config.url is not None:
            urls["url"] = config.url
        limits: dict[str, InProcess] = {}
        for way in (way for way in urls if way in OURS):
            limits[way] = InProcess(way, config.index, core)
            stack.callback(limits[way].close)
        report(f"{len(queries)} questions; servers on core {core} of {os.cpu_count()}, one thread each; nothing cached")
        loads, bulk, rates = _measure(config, urls, limits, queries, report)
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
        store = PassageStore(Path(config.index))
        step = max(1, len(store) // 2000)
        found = [store[row].title or store[row].text[:100] for row in range(0, len(store), step)]
    if not found:
        raise UsageError(f"questions={config.questions} has no question")
    random.Random(0).shuffle(found)
    return found


Loads = dict[tuple[str, int], list[Load]]


def _measure(
    config: BenchRetrievalConfig,
    urls: dict[str, str],
    limits: dict[str, InProcess],
    queries: list[str],
    report: Callable[[str], None],
) -> tuple[Loads, dict[str, Load], dict[str, list[float]]]:
    loads: Loads = {}
    bulk: dict[str, Load] = {}
    rates: dict[str, list[float]] = {}
    for done in range(config.rounds):
        # each goes first every other time
        ways = list(urls) if done % 2 == 0 else list(reversed(urls))
        for clients in config.clients:
            for way in ways:
                seen = asyncio.run(
                    load(
                        urls[way],
                        queries,
                        clients=clients,
                        seconds=config.seconds,
                        topk=config.topk,
                        probe=way in OURS,
                    )
                )
                loads.setdefault((way, clients), []).append(seen)
                if way in limits and clients == max(config.clients):
                    rates.setdefault(way, []).append(limits[way].queries_per_s(queries, config.topk, config.seconds))
        for way in ways if config.bulk else []:
            bulk.setdefault(way, Load()).add(asyncio.run(_beside_bulk(urls[way], queries, config)))
        report(f"round {done + 1} of {config.rounds} done")
    return loads, bulk, rates


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
        quantile_ms(whole.took, 0.5),
        quantile_ms(whole.took, 0.99),
        quantile_ms(whole.health, 0.99),
        whole.refused,
        len(whole.errors),
        whole.errors[0] if whole.errors else "",
    )


def _report_cells(cells: list[Cell], rates: dict[str, list[float]], report: Callable[[str], None]) -> None:
    report("| server | clients | queries/s | p50 ms | p99 ms | /health p99 ms | errors | refused |")
    report("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for cell in sorted(cells, key=lambda cell: cell.clients):
        health = f"{cell.health_p99_ms:.0f}" if cell.way in OURS else "-"
        report(
            f"| {cell.way} | {cell.clients} | {cell.queries_per_s:.0f} | {cell.p50_ms:.0f} | {cell.p99_ms:.0f} | "
            f"{health} | {cell.errors} | {cell.refused} |"
        )
        if cell.first_error:
            report(f"first error of {cell.way}: {cell.first_error}")
    for way, values in rates.items():
        report(f"{way}, in process, batches of {BATCH}: {statistics.median(values):.0f} queries/s")


def _report_ratios(
    config: BenchRetrievalConfig, cells: list[Cell], rates: dict[str, list[float]], report: Callable[[str], None]
) -> None:
    """Of each of our servers to the per-request one, round by round; median (range)."""
    of = {(cell.way, cell.clients): cell for cell in cells}
    for clients in config.clients:
        for way in (way for way in config.ways if way in OURS):
            ours = of[way, clients]
            for peer in (way for way in config.ways if way not in OURS):
                theirs = of[peer, clients]
                ratios = [mine / other for mine, other in zip(ours.rounds, theirs.rounds, strict=True)]
                shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                report(
                    f"{way} / {peer}, {clients} clients: {shown} of its queries/s, "
                    f"{ours.p99_ms / theirs.p99_ms:.2f} of its p99"
                )
            if clients == max(config.clients):
                shares = [mine / limit for mine, limit in zip(ours.rounds, rates[way], strict=True)]
                report(f"{way} / in process, {clients} clients: {statistics.median(shares):.2f}")

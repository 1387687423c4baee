"""`agent-rl bench rollout`: two-turn search episodes, trajectories per second, beside lockstep generation.

Every engine and setting is measured in turn, round after round, in one process on the same machine; figures are medians
of the rounds, ratios are taken within a round.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from agent_rl.bench.episodes import Episodes
from agent_rl.bench.rollout_engines import ENGINES, Engine, Run
from agent_rl.config.schema import BenchRolloutConfig
from agent_rl.models import resolve_model_path

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine and setting in one round.

    ``per_s``: trajectories per second over the whole run, its ends included; ``full_per_s``: while all places were
    taken, None for an engine that works in waves; ``cpu_s``: processor seconds of a trajectory, all threads.
    """

    engine: str
    in_flight: int
    latency_s: float
    round: int
    per_s: float
    full_per_s: float | None
    cpu_s: float
    metrics: dict[str, float]


def bench_rollout(config: BenchRolloutConfig, report: Report = print) -> list[Cell]:
    """Measure, report tables, and write ``config.out`` (JSON) where it is given."""
    from transformers import AutoTokenizer

    if config.threads:
        torch.set_num_threads(config.threads)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path(config.model.path))
    episodes = Episodes(config, tokenizer)
    engines: dict[str, Engine] = {name: ENGINES[name](config, episodes) for name in config.engines}
    try:
        cells = _measure(config, engines, report)
    finally:
        for engine in engines.values():
            engine.close()
    _tables(config, cells, report)
    if config.out is not None:
        Path(config.out).write_text(json.dumps([asdict(cell) for cell in cells], indent=2) + "\n", encoding="utf-8")
    return cells


def _measure(config: BenchRolloutConfig, engines: dict[str, Engine], report: Report) -> list[Cell]:
    report(
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads; {config.episodes} episodes in groups of "
        f"{config.group_size}; tokens: prompt {config.prompt_tokens}, query {config.query_tokens}, "
        f"observation {config.observation_tokens}, answer {config.answer_tokens}"
    )
    settings = [(places, 0.0) for places in config.in_flight]
    settings += [(max(config.in_flight), latency_s) for latency_s in config.latencies_s]
    cells = []
    for number in range(config.rounds):
        for in_flight, latency_s in settings:
            # Each goes first every other time.
            for name in list(engines)[:: -1 if number % 2 else 1]:
                if latency_s and name not in config.latency_engines:
                    continue
                began, processor = time.perf_counter(), time.process_time()
                run = engines[name].run(in_flight, latency_s)
                spent = (time.process_time() - processor) / len(run.done)
                whole = len(run.done) / (run.done[-1] - began)
                full = _full_rate(run, in_flight)
                cells.append(Cell(name, in_flight, latency_s, number, whole, full, spent, run.metrics))
                report(
                    f"round {number + 1}: {name}, {in_flight} in flight, tools of {latency_s:g} s: {whole:.2f} "
                    f"trajectories/s, {spent:.3f} cpu s each"
                )
    return cells


def _full_rate(run: Run, in_flight: int) -> float | None:
    """Trajectories per second from when the first ``in_flight`` were done to when the last began."""
    if run.last_begun is None or len(run.done) < 2 * in_flight:
        return None
    begin = run.done[in_flight - 1]
    within = sum(begin < moment <= run.last_begun for moment in run.done)
    return within / (run.last_begun - begin) if within else None


def _tables(config: BenchRolloutConfig, cells: Sequence[Cell], report: Report) -> None:
    def of(engine: str, in_flight: int, latency_s: float) -> list[Cell]:
        return [c for c in cells if (c.engine, c.in_flight, c.latency_s) == (engine, in_flight, latency_s)]

    report(
        f"{'engine':10} {'in flight':>9} {'tool s':>6} {'traj/s':>7} {'full':>7} {'cpu s':>6}  generate/queue/tool s"
    )
    for engine, in_flight, latency_s in dict.fromkeys((c.engine, c.in_flight, c.latency_s) for c in cells):
        found = of(engine, in_flight, latency_s)
        full = [cell.full_per_s for cell in found if cell.full_per_s is not None]
        line = f"{engine:10} {in_flight:9} {latency_s:6g} {median(c.per_s for c in found):7.2f} "
        line += f"{median(full):7.2f} " if full else f"{'-':>7} "
        line += f"{median(c.cpu_s for c in found):6.3f}"
        if "rollout/generate_s_mean" in found[0].metrics:
            parts = [median(c.metrics[f"rollout/{p}_s_mean"] for c in found) for p in ("generate", "queued", "tool")]
            line += "  " + " / ".join(f"{part:.2f}" for part in parts)
        if latency_s and "rollout/tool_hidden_share" in found[0].metrics:
            hidden = median(c.metrics["rollout/tool_hidden_share"] for c in found)
            line += f"  hidden {hidden:.1%}"
        report(line)
    ours = config.engines[0]
    for engine in config.engines[1:]:
        for in_flight in config.in_flight:
            pairs = list(zip(of(ours, in_flight, 0), of(engine, in_flight, 0), strict=True))
            shown = _ratio([a.per_s / b.per_s for a, b in pairs])
            spent = _ratio([b.cpu_s / a.cpu_s for a, b in pairs])
            report(f"{ours} / {engine} at {in_flight} in flight: {shown} by the clock, {spent} by processor time")
    most = max(config.in_flight)
    for latency_s in config.latencies_s:
        pairs = list(zip(of(ours, most, latency_s), of(ours, most, 0), strict=True))
        kept = [a.full_per_s / b.full_per_s for a, b in pairs if a.full_per_s and b.full_per_s]
        if kept:
            report(f"{ours}, tools of {latency_s:g} s: {_ratio(kept)} of the rate without, all places taken")


def _ratio(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

"""`agent-rl bench report`: a run made long by repeating what a real one holds; what its report costs to make and open.

The report is made in a process of its own, whose peak memory is the one told. The page is opened from disk in
headless Chromium where playwright and a Chromium are installed (extra ``dev``).
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.schema import BenchReportConfig
from agent_rl.errors import UsageError
from agent_rl.report.run_data import RunData, read_run
from agent_rl.report.trajectories import read_step

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """``open_s``: median of the openings, until a trajectory stands on the page; None where no browser is installed."""

    trajectories: int
    tokens: int
    make_s: float
    peak_memory_mb: float
    page_mb: float
    open_s: float | None
    chart_s: float | None


def bench_report(config: BenchReportConfig, report: Callable[[str], None] = print) -> ReportFigures:
    """Measure, report, and write ``config.out`` (JSON) where it is given.

    Raises UsageError where ``config.run_dir`` is no run, or one without a step or trajectories.
    """
    with tempfile.TemporaryDirectory() as folder:
        long_run, page = Path(folder, "long"), Path(folder, "report.html")
        tokens = _lengthen(read_run(Path(config.run_dir)), long_run, config, report)
        began = time.perf_counter()
        command = [sys.executable, "-m", "agent_rl.cli", "report", str(long_run), "--out", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        make_s = time.perf_counter() - began
        peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        opened = _openings(page, config.openings)
        figures = ReportFigures(
            trajectories=config.steps * config.trajectories_per_step,
            tokens=tokens,
            make_s=round(make_s, 1),
            peak_memory_mb=round(peak_kib / 1024),
            page_mb=round(page.stat().st_size / 1e6, 2),
            open_s=round(statistics.median(first for first, _ in opened), 2) if opened else None,
            chart_s=round(statistics.median(chart for _, chart in opened), 2) if opened else None,
        )
    report(f"{config.steps} steps, {figures.trajectories} trajectories, {tokens} tokens")
    report(f"made in {figures.make_s} s with a peak of {figures.peak_memory_mb} MB; {figures.page_mb} MB of HTML")
    if opened:
        report(f"opened in {figures.open_s} s, first chart after {figures.chart_s} s (median of {len(opened)})")
    else:
        report("not opened: playwright or Chromium is not installed")
    if config.out is not None:
        Path(config.out).write_text(json.dumps(asdict(figures), indent=2) + "\n", encoding="utf-8")
    return figures


def _lengthen(run: RunData, target: Path, config: BenchReportConfig, report: Callable[[str], None]) -> int:
    """Write the long run to ``target``; the number of its tokens."""
    rows = [row for file in run.trajectory_files for row in read_step(file, run.notes)]
    metrics = run.metrics.get("train", [])
    if not rows or not metrics:
        raise UsageError(f"run_dir={config.run_dir}: has no finished step with trajectories to make a long run of")
    report(f"repeating the {len(rows)} trajectories of {config.run_dir}")
    draw, tokens = random.Random(0), 0
    (target / "trajectories").mkdir(parents=True)
    shutil.copy(Path(config.run_dir, "config.yaml"), target)
    with (target / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(1, config.steps + 1):
            line = {key: _shaken(value, draw) for key, value in metrics[step % len(metrics)].items()}
            file.write(json.dumps(line | {"step": step}) + "\n")
    for step in range(1, config.steps + 1):
        with gzip.open(target / "trajectories" / f"step_{step:06d}.jsonl.gz", "wt", 4, encoding="utf-8") as file:
            for place in range(config.trajectories_per_step):
                # Numbers of its own for every trajectory: repeated ones would compress better than a run's do.
                row = dict(draw.choice(rows))
                row |= {"step": step, "group": f"train/{step}/{place // 8}", "sample": place % 8}
                row["logprobs"] = [_shaken(value, draw) for value in row["logprobs"]]
                tokens += len(row["ids"])
                file.write(json.dumps(row) + "\n")
    return tokens


def _shaken(value: Any, draw: random.Random) -> Any:
    return round(value * draw.uniform(0.9, 1.1), 6) if isinstance(value, float) else value


def _openings(page: Path, times: int) -> list[tuple[float, float]]:
    """Seconds to the first trajectory and to the first chart, of each opening in a fresh browser context."""
    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        return []
    return list(_open(path, page.as_uri(), times))


def _open(chromium: str, address: str, times: int) -> Iterator[tuple[float, float]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(times):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            began = time.perf_counter()
            page.goto(address)
            page.wait_for_selector("#shown .tokens")
            first = time.perf_counter() - began
            page.wait_for_selector(".plot .main-svg")
            yield first, time.perf_counter() - began
            page.close()
        browser.close()

"""Curves of a run as plotly figures (plain data, drawn in the reader's browser).

A figure is ``{"title", "note", "data": [traces], "layout": {...}}``. Colours are numbers of the page's
palette, which differs between the light and the dark theme; the page's script puts the real colours in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.report.run_data import Row, RunData

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chart:
    """One line chart: which metrics it shows, and what a reader should know about them."""

    title: str
    series: tuple[tuple[str, str], ...]  # metric key, label
    note: str = ""
    log: bool = False
    from_zero: bool = True


_CHARTS = (
    Chart("Reward", (("reward/mean", "mean"), ("reward/std", "std within the batch"))),
    Chart("Exact match and format", (("reward/em", "exact match"), ("reward/format", "format"))),
    Chart("Gradient norm before clipping", (("objective/grad_norm", "gradient norm"),)),
    Chart(
        "Loss",
        (("objective/loss", "loss"),),
        "A policy-gradient loss need not fall for the policy to improve.",
    ),
    Chart("Entropy", (("objective/entropy", "nats per token"),)),
    Chart("KL to the reference", (("objective/kl", "KL"),)),
    Chart(
        "Tokens of a response",
        (("rollout/policy_tokens_mean", "policy"), ("rollout/tool_tokens_mean", "tool")),
        "Only policy tokens are trained on.",
    ),
    Chart("Turns and searches", (("rollout/turns_mean", "turns"), ("rollout/searches_mean", "searches"))),
    Chart(
        "Sampler against trainer",
        (("mismatch/mean_abs_logp", "mean |difference|"), ("mismatch/max_abs_logp", "max |difference|")),
        "How far the log-probabilities noted while sampling lie from those of the training pass.",
        log=True,
    ),
    Chart(
        "Token weight",
        (("weight/mean", "mean"), ("weight/min", "min"), ("weight/max", "max")),
        from_zero=False,
    ),
    Chart(
        "Weights at their bounds",
        (("weight/at_lower", "at the lower bound"), ("weight/at_upper", "at the upper bound")),
        "Shares of the trained tokens.",
    ),
    Chart(
        "Clipped tokens",
        (
            ("objective/clip_fraction_pos", "advantage above 0"),
            ("objective/clip_fraction_neg", "advantage below 0"),
            ("objective/dead_positive_fraction", "advantage above 0, no gradient"),
        ),
        "Shares of the trained tokens.",
    ),
    Chart(
        "Lost rollouts and uniform groups",
        (("rollout/failed", "failed rollouts"), ("rollout/uniform_groups", "groups with one reward")),
    ),
    Chart("Tool latency", (("tool/latency_mean_s", "seconds per call"),)),
    Chart("Tool failures", (("tool/failures", "calls"),)),
    Chart("Learning rate", (("objective/lr", "learning rate"),)),
)


def curve_figures(runs: Sequence[RunData]) -> list[Figure]:
    """Every chart that some run has numbers for, then the stacked ones of each run."""
    warmup = Chart("Warm-up loss", (("objective/loss", "loss"),), "Supervised steps before RL.")
    candidates = [_evaluations(runs), *(_lines(chart, runs, "train") for chart in _CHARTS)]
    candidates.append(_lines(warmup, runs, "warmup"))
    figures = [figure for figure in candidates if figure is not None]
    for run in runs:
        suffix = f" ({run.name})" if len(runs) > 1 else ""
        rows = run.metrics.get("train", [])
        stops = sorted({key for row in rows for key in row if key.startswith("rollout/stop/")})
        times = sorted(
            {key for row in rows for key in row if key.startswith("time/") and key.endswith("_s")} - {"time/step_s"}
        )
        if stops:
            labels = [key.removeprefix("rollout/stop/") for key in stops]
            figures.append(_stacked(f"Why rollouts stopped{suffix}", rows, stops, labels, "Shares of the rollouts."))
        if times:
            labels = [key.removeprefix("time/").removesuffix("_s") for key in times]
            figures.append(_stacked(f"Seconds of a step{suffix}", rows, times, labels))
    return figures


def finite(value: Any) -> float | None:
    """JSON in a browser has no NaN: what is not a finite number becomes a gap in the curve."""
    if isinstance(value, int | float) and math.isfinite(value):
        return round(float(value), 6) if abs(value) >= 1 else float(f"{value:.6g}")
    return None


def _lines(chart: Chart, runs: Sequence[RunData], phase: str) -> Figure | None:
    traces = []
    for run_number, run in enumerate(runs):
        for series_number, (key, label) in enumerate(chart.series):
            rows = [row for row in run.metrics.get(phase, []) if key in row]
            if not rows:
                continue
            several = len(runs) > 1
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(rows) < 3 else "lines",
                    "name": f"{run.name}: {label}" if several else label,
                    "x": [row["step"] for row in rows],
                    "y": [finite(row[key]) for row in rows],
                    # One run: a colour for each series. Several: a colour for each run, a dash for each
                    # series.
                    "color": run_number if several else series_number,
                    "line": {"width": 2, "dash": ("solid", "dot", "dash")[series_number if several else 0]},
                }
            )
    if not traces:
        return None
    return _figure(chart.title, traces, chart.note, log=chart.log, from_zero=chart.from_zero)


def _stacked(title: str, rows: Sequence[Row], keys: Sequence[str], labels: Sequence[str], note: str = "") -> Figure:
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "all",
            "name": label,
            "x": [row["step"] for row in rows],
            "y": [finite(row.get(key)) or 0.0 for row in rows],
            "color": number,
            "line": {"width": 1},
        }
        for number, (key, label) in enumerate(zip(keys, labels, strict=True))
    ]
    return _figure(title, traces, note)


def _evaluations(runs: Sequence[RunData]) -> Figure | None:
    """Greedy exact match of each evaluation over the training step, with its interval."""
    traces = []
    for number, run in enumerate(runs):
        points = [
            (evaluation["step"], evaluation["greedy"]["em"])
            for evaluation in run.evaluations
            if "step" in evaluation and "em" in evaluation.get("greedy", {})
        ]
        if points:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": run.name if len(runs) > 1 else "exact match, greedy",
                    "x": [step for step, _ in points],
                    "y": [finite(em["mean"]) for _, em in points],
                    "error_y": {
                        "type": "data",
                        "symmetric": False,
                        "array": [finite(em["high"] - em["mean"]) for _, em in points],
                        "arrayminus": [finite(em["mean"] - em["low"]) for _, em in points],
                    },
                    "color": number,
                    "line": {"width": 2},
                }
            )
    return _figure("Evaluation", traces, "Bars: 95 % bootstrap intervals over questions.") if traces else None


def _figure(
    title: str, traces: list[dict[str, Any]], note: str, *, log: bool = False, from_zero: bool = True
) -> Figure:
    y = {"type": "log"} if log else {"type": "linear", "rangemode": "tozero" if from_zero else "normal"}
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": y}
    return {"title": title, "note": note, "data": traces, "layout": layout}

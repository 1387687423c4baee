"""Curves of a run as plotly figures (plain data, drawn in the reader's browser).

A figure is ``{"title", "note", "data": [traces], "layout": {...}}``. Colours are numbers of the page's
palette, which differs between the light and the dark theme; the page's script puts the real colours in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.report.compare import SeedGroup, seed_groups
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
    Chart(
        "Reward", (("reward/mean", "mean"), ("reward/std", "std within the batch")), "As the TR-GRPO paper's Figure 4."
    ),
    Chart("Exact match and format", (("reward/em", "exact match"), ("reward/format", "format"))),
    Chart(
        "Gradient norm before clipping", (("objective/grad_norm", "gradient norm"),), "As the TR-GRPO paper's Figure 3."
    ),
    Chart(
        "Loss",
        (("objective/loss", "loss"),),
        "A policy-gradient loss need not fall for the policy to improve.",
    ),
    Chart(
        "Entropy",
        (("objective/entropy", "of the distribution"), ("rollout/entropy", "of the sampled tokens")),
        "Nats a token.",
    ),
    Chart(
        "Log-probability of responses",
        (("rollout/logp_correct", "correct"), ("rollout/logp_wrong", "wrong")),
        "Mean over tokens, as sampled.",
        from_zero=False,
    ),
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
    Chart("Tool latency", (("tool/latency_mean_s", "mean"), ("tool/latency_max_s", "longest")), "Seconds a call."),
    Chart("Tool failures", (("tool/failures", "trajectories that a tool's failure broke"),)),
    Chart("Learning rate", (("objective/lr", "learning rate"),)),
)


_SHARE = "objective/grad_share_p"
_POINTS = 1000  # of a line; a longer one keeps the lowest and the highest value of each stretch


def curve_figures(runs: Sequence[RunData]) -> list[Figure]:
    """Every chart that some run has numbers for, then the stacked ones of each run."""
    warmup = Chart("Warm-up loss", (("warmup/loss", "loss"),), "Supervised steps before RL; the last is step 0.")
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
        shares = _bucket_keys(rows)
        if shares:
            labels = [key.removeprefix(_SHARE).replace("_", " to ") for key in shares]
            note = "Shares of the gradient's norm by the probability of the token that it comes from."
            figures.append(_stacked(f"Where the gradient comes from{suffix}", rows, shares, labels, note))
        if stops:
            labels = [key.removeprefix("rollout/stop/") for key in stops]
            figures.append(_stacked(f"Why rollouts stopped{suffix}", rows, stops, labels, "Shares of the rollouts."))
        if times:
            labels = [key.removeprefix("time/").removesuffix("_s") for key in times]
            figures.append(_stacked(f"Seconds of a step{suffix}", rows, times, labels))
    return figures


def part_zero(figures: Sequence[Figure]) -> tuple[list[Figure], list[str]]:
    """The figures with something to see, and the titles of those that are 0 throughout."""
    zero = [not any(y for trace in figure["data"] for y in trace["y"]) for figure in figures]
    pairs = list(zip(figures, zero, strict=True))
    return [figure for figure, flat in pairs if not flat], [figure["title"] for figure, flat in pairs if flat]


def _bucket_keys(rows: Sequence[Row]) -> list[str]:
    """Keys of the gradient's shares, from the least probable tokens to the surest."""
    keys = {key for row in rows for key in row if key.startswith(_SHARE)}
    return sorted(keys, key=lambda key: float(key.removeprefix(_SHARE).split("_")[0]))


def finite(value: Any) -> float | None:
    """JSON in a browser has no NaN: what is not a finite number becomes a gap in the curve."""
    if isinstance(value, int | float) and math.isfinite(value):
        return round(float(value), 6) if abs(value) >= 1 else float(f"{value:.6g}")
    return None


def _lines(chart: Chart, runs: Sequence[RunData], phase: str) -> Figure | None:
    several, traces, thinned = len(runs) > 1, [], 0
    for run_number, run in enumerate(runs):
        for series_number, (key, label) in enumerate(chart.series):
            points = [(row["step"], finite(row[key])) for row in run.metrics.get(phase, []) if key in row]
            if not points:
                continue
            shown = thin(points)
            thinned = max(thinned, len(points) if len(shown) < len(points) else 0)
            name = f"{run.name}: {label}" if several else label
            # One run: a colour for each series. Several: a colour for each run, a dash for each series.
            color, dash = (run_number, series_number) if several else (series_number, 0)
            traces.append(_trace(name, shown, color, dash) | {"mode": "lines+markers" if len(points) < 3 else "lines"})
    if not traces:
        return None
    note = chart.note
    if thinned:
        note += f" Of {thinned:,} steps, the lowest and the highest of each stretch are drawn."
    figure = _figure(chart.title, traces, note.strip(), log=chart.log, from_zero=chart.from_zero)
    bands = _bands(chart, runs, phase)
    return figure | {"bands": bands} if bands else figure


def _bands(chart: Chart, runs: Sequence[RunData], phase: str) -> list[dict[str, Any]]:
    """Runs that differ in the seed alone as one line, their mean, in the band from the lowest to the highest."""
    groups, traces = seed_groups(runs), []
    grouped = {place for group in groups for place in group.places}
    alone = [SeedGroup(run.name, (place,)) for place, run in enumerate(runs) if place not in grouped]
    for group in sorted([*groups, *alone], key=lambda group: group.places) if groups else []:
        for series_number, (key, label) in enumerate(chart.series):
            members = [
                {row["step"]: finite(row[key]) for row in runs[place].metrics.get(phase, []) if key in row}
                for place in group.places
            ]
            steps = sorted(set.intersection(*(set(member) for member in members)))  # where all of them have a value
            values = [[v for member in members if (v := member[step]) is not None] for step in steps]
            points = [(step, found) for step, found in zip(steps, values, strict=True) if len(found) == len(members)]
            if not points:
                continue
            points = points[:: -(-len(points) // _POINTS)]
            color, count = group.places[0], len(members)
            for edge, pick in (("low", min), ("high", max)) if count > 1 else ():
                line = _trace(f"{group.name}: {label}, {edge}", [(x, pick(ys)) for x, ys in points], color, 0)
                traces.append(line | {"line": {"width": 0}, "showlegend": False, "band": edge})
            means = [(x, finite(sum(ys) / count)) for x, ys in points]
            name = f"{group.name}: {label}" + (f", mean of {count} seeds" if count > 1 else "")
            traces.append(_trace(name, means, color, series_number))
    return traces


def _trace(name: str, points: Sequence[tuple[int, float | None]], color: int, dash: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "color": color,
        "line": {"width": 2, "dash": ("solid", "dot", "dash")[dash]},
    }


def thin(points: Sequence[tuple[int, float | None]], most: int = _POINTS) -> list[tuple[int, float | None]]:
    """At most about ``most`` points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    stretch = -(-len(points) // (most // 2))
    kept: list[tuple[int, float | None]] = []
    for start in range(0, len(points), stretch):
        part = [point for point in points[start : start + stretch] if point[1] is not None]
        if part:
            kept += sorted({min(part, key=lambda p: p[1] or 0.0), max(part, key=lambda p: p[1] or 0.0)})
    return kept


def _stacked(title: str, rows: Sequence[Row], keys: Sequence[str], labels: Sequence[str], note: str = "") -> Figure:
    rows = rows[:: -(-len(rows) // _POINTS)]
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

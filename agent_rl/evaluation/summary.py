"""Means over rows with their intervals: of a whole evaluation and of each of its sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from agent_rl.evaluation.metrics import Interval, avg_at_k, bootstrap_interval, pass_at_k
from agent_rl.evaluation.rows import Row, by_question, metric_names

MODES = ("greedy", "sampled")


def summarise(rows: Sequence[Row], answerable: Collection[str] | None = None) -> dict[str, Any]:
    """By mode: ``{metric: {mean, low, high}, "avg@k", "pass@k", "stop_reasons", "sets": {set: the same}}``.

    With several sets ``macro_em`` is the mean of their EMs, each set counting once (the Avg. of the papers' tables).
    ``answerable``: ids of questions that an index can answer (`data coverage`); their EM is reported beside.
    """
    found: dict[str, Any] = {}
    for mode in MODES:
        chosen = [row for row in rows if row["mode"] == mode]
        if not chosen:
            continue
        found[mode] = _means(chosen, mode)
        if answerable is not None:
            part = [row for row in chosen if row["item_id"] in answerable]
            found[mode]["answerable_share"] = len(part) / len(chosen)
            if part:
                found[mode]["answerable_em"] = _em(part, mode)
        sets = list(dict.fromkeys(row["set"] for row in chosen))
        if len(sets) > 1:
            parts = {name: _means([row for row in chosen if row["set"] == name], mode) for name in sets}
            found[mode]["sets"] = parts
            found[mode]["macro_em"] = float(np.mean([part["em"]["mean"] for part in parts.values()]))
    return found


def _means(chosen: Sequence[Row], mode: str) -> dict[str, Any]:
    found: dict[str, Any] = {"questions": len(by_question(chosen, mode, "em"))}
    for name in metric_names(chosen):
        found[name] = as_dict(bootstrap_interval(list(by_question(chosen, mode, name).values())))
    em = list(by_question(chosen, mode, "em").values())
    samples = len(em[0])
    if samples > 1:
        found[f"avg@{samples}"] = as_dict(bootstrap_interval(avg_at_k(em)))
        k = 2
        while k < samples:
            found[f"pass@{k}"] = as_dict(bootstrap_interval(pass_at_k(em, k)))
            k *= 2
        found[f"pass@{samples}"] = as_dict(bootstrap_interval(pass_at_k(em, samples)))
    reasons = [row["stop_reason"] for row in chosen]
    found["stop_reasons"] = {reason: reasons.count(reason) / len(reasons) for reason in sorted(set(reasons))}
    counters = sorted({name for row in chosen for name in row.get("counters", {})})
    found["counters"] = {name: sum(row["counters"].get(name, 0) for row in chosen) for name in counters}
    return found


def _em(rows: Sequence[Row], mode: str) -> dict[str, float]:
    return as_dict(bootstrap_interval(list(by_question(rows, mode, "em").values())))


def as_dict(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}

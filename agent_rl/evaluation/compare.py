"""Two evaluations of the same questions: paired differences with intervals and a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_rl.errors import UsageError
from agent_rl.evaluation.metrics import paired_difference, paired_p_value
from agent_rl.evaluation.result import EvalResult
from agent_rl.evaluation.rows import by_question, write_whole
from agent_rl.evaluation.summary import MODES, as_dict


def compare(before: EvalResult, after: EvalResult, metric: str = "em") -> dict[str, dict[str, float]]:
    """after - before by mode: ``{mode_metric: {mean, low, high, p, questions, better, worse}}``.

    Pairs are made by set and question id. Raises UsageError where an evaluation has other questions, or the metric
    is in neither.
    """
    found: dict[str, dict[str, float]] = {}
    for mode in MODES:
        old, new = (by_question(result.rows, mode, metric) for result in (before, after))
        if not old or not new:
            continue
        if old.keys() != new.keys():
            raise UsageError(
                f"{before.label} and {after.label} have other questions ({len(old.keys() - new.keys())} only in the "
                f"first, {len(new.keys() - old.keys())} only in the second): give both the same sets, split, number "
                "of questions and eval.seed"
            )
        pairs = [(_mean(old[key]), _mean(new[key])) for key in old]
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        found[f"{mode}_{metric}"] = as_dict(paired_difference(first, second)) | {
            "p": paired_p_value(first, second),
            "questions": len(pairs),
            "better": sum(b > a for a, b in pairs),
            "worse": sum(b < a for a, b in pairs),
        }
    if not found:
        raise UsageError(f"{before.label} and {after.label} have no mode in common that measured {metric!r}")
    return found


def compare_sets(before: EvalResult, after: EvalResult, metric: str = "em") -> dict[str, dict[str, dict[str, float]]]:
    """``compare`` of each set by itself; empty where there is only one."""
    sets = list(dict.fromkeys(row["set"] for row in before.rows))
    if len(sets) < 2:
        return {}
    return {name: compare(_only(before, name), _only(after, name), metric) for name in sets}


def _only(result: EvalResult, name: str) -> EvalResult:
    return EvalResult(result.label, result.summary, [row for row in result.rows if row["set"] == name])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def save_comparison(comparison: dict[str, Any], folder: Path) -> None:
    write_whole(folder / "comparison.json", json.dumps(comparison, indent=1))


def describe_difference(name: str, found: dict[str, float]) -> str:
    """One line: the difference, its interval, the p-value and how many questions changed."""
    interval = f"[{found['low']:+.3f}, {found['high']:+.3f}]"
    return (
        f"{name}: {found['mean']:+.3f} {interval} (paired, 95 %), p = {found['p']:.2g}; "
        f"{found['better']:.0f} questions better, {found['worse']:.0f} worse of {found['questions']:.0f}"
    )

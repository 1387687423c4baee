"""Tables of evaluations in the shape of papers: a row a model, a column a set, then their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_rl.evaluation.result import EvalResult
from agent_rl.evaluation.summary import MODES


def markdown(results: Sequence[EvalResult], metric: str = "em") -> str:
    """One Markdown table for each mode that any result has, each cell ``mean [low, high]`` in percent."""
    tables = []
    for mode in MODES:
        shown = [result for result in results if mode in result.summary]
        if shown:
            tables.append(_table(shown, mode, metric))
    return "\n\n".join(tables) + "\n"


def _table(results: Sequence[EvalResult], mode: str, metric: str) -> str:
    sets = list(dict.fromkeys(name for result in results for name in result.summary[mode].get("sets", {})))
    several = bool(sets)
    extra = _samples(results, mode)
    head = ["model", *sets, *(["Avg."] if several else []), "all", *extra, "searches", "questions"]
    lines = [
        f"**{metric}, {mode}**, percent with 95 % intervals over questions",
        "",
        _line(head),
        _line(["---"] * len(head)),
    ]
    for result in results:
        found = result.summary[mode]
        cells = [_name(result, results), *(_cell(found.get("sets", {}).get(name), metric) for name in sets)]
        if several:
            cells.append(_percent(found["macro_em"]) if metric == "em" and "macro_em" in found else "-")
        cells += [_cell(found, metric), *(_cell(found, name) for name in extra)]
        cells += [f"{found['searches']['mean']:.2f}", str(found.get("questions", result.summary["questions"]))]
        lines.append(_line(cells))
    if any("answerable_em" in result.summary[mode] for result in results):
        lines.append("")
        for result in results:
            if "answerable_em" in (found := result.summary[mode]):
                lines.append(
                    f"{_name(result, results)}: of the {found['answerable_share']:.0%} that the index can answer, "
                    f"EM {_cell(found, 'answerable_em')}"
                )
    return "\n".join(lines)


def _samples(results: Sequence[EvalResult], mode: str) -> list[str]:
    names = dict.fromkeys(name for result in results for name in result.summary[mode])
    return [name for name in names if name.startswith("pass@")]


def _name(result: EvalResult, results: Sequence[EvalResult]) -> str:
    """The label, and the model too where two results have the same label."""
    if sum(other.label == result.label for other in results) == 1:
        return result.label
    return f"{result.label} ({result.summary.get('model') or '?'})"


def _cell(found: dict[str, Any] | None, metric: str) -> str:
    if not found or metric not in found:
        return "-"
    interval = found[metric]
    return f"{_percent(interval['mean'])} [{_percent(interval['low'])}, {_percent(interval['high'])}]"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"

"""Tables of the report: runs, evaluations with intervals, questions won and lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.report.run_data import Row, RunData
from agent_rl.report.trajectories import visible

_CHANGED_SHOWN = 8
_LAST_STEPS = 10


@dataclass(frozen=True, slots=True)
class Table:
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class ChangedQuestions:
    """Questions answered greedily both before and after RL, whose exact match changed."""

    won: int
    lost: int
    table: Table


def runs_table(runs: Sequence[RunData]) -> Table:
    """What each run was, and how far it came."""
    rows = []
    for run in runs:
        train = run.metrics.get("train", [])
        seconds = sum(row.get("time/step_s", 0.0) for row in train)
        rewards = [row["reward/mean"] for row in train if "reward/mean" in row]
        rows.append(
            [
                run.name,
                _nested(run.config, "task", "kind"),
                _nested(run.config, "model", "path"),
                _nested(run.config, "algo", "name"),
                str(train[-1]["step"]) if train else "none",
                f"{seconds / 60:.1f} min" if seconds else "-",
                f"{rewards[0]:.3f}" if rewards else "-",
                f"{sum(rewards[-_LAST_STEPS:]) / len(rewards[-_LAST_STEPS:]):.3f}" if rewards else "-",
            ]
        )
    head = [
        "run",
        "task",
        "model",
        "algo",
        "last step",
        "time",
        "first reward",
        f"reward, last {_LAST_STEPS}",
    ]
    return Table(head, [[visible(cell) for cell in row] for row in rows])


def evaluation_table(runs: Sequence[RunData]) -> Table | None:
    """A row for each evaluation, a column for each of its means with its interval; None without any."""
    columns: list[tuple[str, str]] = []
    for run in runs:
        for evaluation in run.evaluations:
            for mode in ("greedy", "sampled"):
                for name, value in (evaluation.get(mode) or {}).items():
                    if _is_interval(value) and (mode, name) not in columns:
                        columns.append((mode, name))
    if not columns:
        return None
    columns.sort(key=lambda column: column[0])
    rows = []
    for run in runs:
        for evaluation in run.evaluations:
            cells = [(evaluation.get(mode) or {}).get(name) for mode, name in columns]
            about = [run.name, str(evaluation["label"]), str(evaluation.get("questions", "-"))]
            rows.append(about + [_interval(cell) for cell in cells])
    head = ["run", "evaluation", "questions", *(f"{name}, {mode}" for mode, name in columns)]
    return Table(head, [[visible(cell) for cell in row] for row in rows])


def comparison_table(runs: Sequence[RunData]) -> Table | None:
    """Paired differences after - before of each run; None where no run has any."""
    rows = [
        [run.name, name.replace("_", ", "), _interval(value, signed=True)]
        for run in runs
        for name, value in sorted(run.comparison.items())
        if _is_interval(value)
    ]
    head = ["run", "measure", "after - before"]
    return Table(head, [[visible(cell) for cell in row] for row in rows]) if rows else None


def changed_questions(run: RunData) -> ChangedQuestions | None:
    """Which greedy answers turned right or wrong between ``before`` and ``after``; None where one is missing."""
    before, after = ({row["item_id"]: row for row in _greedy(run, label)} for label in ("before", "after"))
    both = [(before[item], after[item]) for item in before if item in after]
    if not both:
        return None
    won = [pair for pair in both if pair[0]["em"] < pair[1]["em"]]
    lost = [pair for pair in both if pair[0]["em"] > pair[1]["em"]]
    rows = [
        [word, str(old["question"]), " | ".join(map(str, old["gold"])), _answer(old), _answer(new)]
        for word, pairs in (("won", won), ("lost", lost))
        for old, new in pairs[:_CHANGED_SHOWN]
    ]
    head = ["", "question", "gold", "before", "after"]
    return ChangedQuestions(len(won), len(lost), Table(head, [[visible(cell) for cell in row] for row in rows]))


def _greedy(run: RunData, label: str) -> list[Row]:
    return [row for row in run.evaluation_rows(label) if row.get("mode") == "greedy" and row.get("em") is not None]


def _answer(row: Row) -> str:
    answer = row.get("answer")
    return "(none)" if answer is None else str(answer)


def _is_interval(value: Any) -> bool:
    return isinstance(value, dict) and {"mean", "low", "high"} <= value.keys()


def _interval(value: dict[str, float] | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    sign = "+" if signed else ""
    return f"{value['mean']:{sign}.3f} [{value['low']:{sign}.3f}, {value['high']:{sign}.3f}]"


def _nested(config: Row, *keys: str) -> str:
    value: Any = config
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return "-"
        value = value[key]
    return str(value)

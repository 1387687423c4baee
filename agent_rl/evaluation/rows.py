"""The rows of an evaluation: one a sampled answer, stored as they come, so that a stopped evaluation goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from agent_rl.errors import ArtifactError, TaskError
from agent_rl.rollout.trajectory import Trajectory
from tasks.base import TaskItem

Row = dict[str, Any]
# Row keys that are numbers but no measure of the answer.
_NO_METRIC = ("sample", "step")


def row_of(trajectory: Trajectory, mode: str) -> Row:
    """A scored trajectory as a row; score parts and counters become columns."""
    score, item = trajectory.score, trajectory.item
    assert score is not None
    if "em" not in score.parts:
        raise TaskError(f"the task's score of {item.id} lacks the part 'em' (1 right, 0 wrong), which eval is about")
    return {
        "item_id": item.id,
        "set": set_of(item),
        "question": item.question,
        "gold": list(item.gold),
        "mode": mode,
        "sample": trajectory.sample,
        "answer": trajectory.answer,
        "reward": score.value,
        **score.parts,
        "stop_reason": str(trajectory.stop_reason),
        "searches": trajectory.searches,
        "turns": len(trajectory.turns),
        "policy_tokens": trajectory.policy_tokens,
        "seconds": round(trajectory.seconds, 3),
        "counters": dict(trajectory.counters),
    }


def set_of(item: TaskItem) -> str:
    """The set or part that results are broken down by: named by eval, by the data, or by the task; "" for none."""
    return next((str(item.meta[key]) for key in ("set", "dataset", "part") if item.meta.get(key)), "")


def metric_names(rows: Sequence[Row]) -> list[str]:
    """Columns that hold a number in every row, in the order of their first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [
        name
        for name in names
        if name not in _NO_METRIC
        and all(isinstance(row.get(name), int | float) and not isinstance(row.get(name), bool) for row in rows)
    ]


def by_question(rows: Iterable[Row], mode: str, column: str) -> dict[tuple[str, str], list[float]]:
    """(set, item id) -> values of ``column`` over its samples, for the rows of ``mode``."""
    table: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["mode"] == mode and column in row:
            table.setdefault((row.get("set", ""), row["item_id"]), []).append(float(row[column]))
    return table


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never half there."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


class PartialRows:
    """Rows of an evaluation in progress, in a hidden file beside where its result will be.

    The first line is its identity (model, settings, questions): rows of another evaluation are thrown away.
    Questions are stored whole, with all their samples, so that one that was cut off is asked again.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self._identity = json.dumps(identity, sort_keys=True)
        self.rows: list[Row] = []
        self._file: TextIO | None = None

    def __enter__(self) -> PartialRows:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else []
        if lines and lines[0] == self._identity.encode():
            for number, line in enumerate(lines[1:-1], 2):  # what follows the last newline was cut off by a kill
                try:
                    self.rows += json.loads(line)
                except ValueError as error:
                    raise ArtifactError(
                        f"{self.path}:{number}: is damaged ({error}); remove the line, and its question is asked "
                        "again, or the file, and all are"
                    ) from error
        kept = self._by_line(self.rows)
        write_whole(self.path, "\n".join([self._identity, *map(_dumps, kept), ""]))
        self._file = self.path.open("a", encoding="utf-8")
        return self

    def add(self, rows: Sequence[Row]) -> None:
        """Store the rows of one question."""
        assert self._file is not None
        self.rows += rows
        self._file.write(_dumps(rows) + "\n")
        self._file.flush()

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    @staticmethod
    def _by_line(rows: Sequence[Row]) -> list[list[Row]]:
        lines: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            lines.setdefault((row["mode"], row["item_id"]), []).append(row)
        return list(lines.values())


def _dumps(rows: Sequence[Row]) -> str:
    return json.dumps(rows, ensure_ascii=False)

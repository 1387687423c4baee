"""Where problems come from: the generator, or files in the layouts of the public sets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tasks.base import EmptySplit, TaskDataError, TaskItem
from tasks.math.generator import problems
from tasks.rows import need, read_rows

SPLITS = ("train", "dev", "test")
_PROBLEM_KEYS = ("problem", "question")
# Several golds first: a row that has both says more in the former.
_ANSWER_KEYS = ("answers", "all_answers", "final_answer", "answer", "golden_answers")


class GeneratedProblems:
    """``train``, ``dev`` and ``test`` problems from ``seed``."""

    def __init__(self, seed: int, train: int, dev: int, test: int, largest: int = 20) -> None:
        self._seed, self._largest = seed, largest
        self._counts = {"train": train, "dev": dev, "test": test}

    def items(self, split: str) -> Sequence[TaskItem]:
        if split not in SPLITS:
            raise TaskDataError(f"split {split!r} is unknown: choose from {', '.join(SPLITS)}")
        try:
            found = list(islice(problems(self._seed, split, largest=self._largest), self._counts[split]))
        except ValueError as error:
            raise TaskDataError(f"task.data.{split}={self._counts[split]}: {error}") from error
        return [
            TaskItem(f"math_{split}_{number}", problem.text, (problem.answer,), {"solution": problem.solution})
            for number, problem in enumerate(found)
        ]


class ProblemFiles:
    """Problems of files (jsonl, JSON or parquet), one list of files a split."""

    def __init__(self, train: Sequence[str], dev: Sequence[str], test: Sequence[str]) -> None:
        self._files = {"train": tuple(train), "dev": tuple(dev), "test": tuple(test)}
        if not any(self._files.values()):
            raise TaskDataError("task.data.train, .dev and .test are all empty: name at least one file")

    def items(self, split: str) -> Sequence[TaskItem]:
        files = self._files.get(split)
        if not files:
            raise EmptySplit(f"no problems for split {split!r}: set task.data.{split}=[file]")
        found, times = [], dict[str, int]()
        for file in files:
            for where, row in read_rows(file):
                item = read_problem(row, where)
                # A training set may hold a problem several times (DSR-Uniform does): its repeats count as rows.
                times[item.id] = repeat = times.get(item.id, 0) + 1
                found.append(
                    item if repeat == 1 else TaskItem(f"{item.id}#{repeat}", item.question, item.gold, item.meta)
                )
        return found


def read_problem(row: dict[str, Any], where: str) -> TaskItem:
    """One row: a problem and one or several golds.

    The problem is ``problem`` or ``question``; in verl's layout the last user message of ``prompt``. The golds are
    ``answers``, ``all_answers``, ``final_answer``, ``answer`` or ``golden_answers`` (a text, a number or a list of
    them, any of which is right), or verl's ``reward_model.ground_truth``. ``tolerance`` (OlympiadBench: ``error``),
    ``solution`` and ``prompt`` go to the item's meta. A row without ``id`` gets one from its problem. Raises
    TaskDataError with the place.
    """
    prompt = row.get("prompt")
    reward = row.get("reward_model")
    if not any(row.get(key) is not None for key in _PROBLEM_KEYS) and isinstance(prompt, list):
        said = [
            message.get("content") for message in prompt if isinstance(message, dict) and message.get("role") == "user"
        ]
        problem = said[-1] if said else None
    else:
        problem = need(row, where, *_PROBLEM_KEYS)
    if not isinstance(problem, str) or not problem.strip():
        raise TaskDataError(f"{where}: the problem should be a text, not {problem!r}")
    if isinstance(reward, dict) and reward.get("ground_truth") is not None:
        gold = reward["ground_truth"]
    else:
        gold = need(row, where, *_ANSWER_KEYS)
    meta: dict[str, Any] = {key: row[key] for key in ("solution", "prompt", "source") if row.get(key) is not None}
    tolerance = _tolerance(row.get("tolerance", row.get("error")), where)
    if tolerance is not None:
        meta["tolerance"] = tolerance
    name = row.get("id")
    if name is None:
        name = "math_" + hashlib.sha256(problem.strip().encode()).hexdigest()[:16]
    return TaskItem(str(name), problem.strip(), _golds(gold, where), meta)


def _golds(value: Any, where: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    golds = []
    for gold in values:
        if isinstance(gold, bool) or not isinstance(gold, str | int | float) or not str(gold).strip():
            raise TaskDataError(f"{where}: the answer holds {gold!r}; it should be a text, a number or a list of them")
        golds.append(str(gold).strip())
    if not golds:
        raise TaskDataError(f"{where}: the list of answers is empty")
    return tuple(dict.fromkeys(golds))


def _tolerance(value: Any, where: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        tolerance = float(value)
    except (TypeError, ValueError):
        tolerance = -1.0
    if not 0 <= tolerance < float("inf"):
        raise TaskDataError(f"{where}: the tolerance should be a number from 0, not {value!r}")
    return tolerance

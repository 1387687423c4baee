"""Where puzzles come from: the generator, or files in the layout of the public sets (Logic-RL, mem-kk-logic)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tasks.base import EmptySplit, TaskDataError, TaskItem
from tasks.draw import Draw
from tasks.kk import generator, wording
from tasks.kk.statements import solve
from tasks.rows import need, need_text, read_rows

SPLITS = ("train", "dev", "test")


class GeneratedPuzzles:
    """``train``, ``dev`` and ``test`` puzzles of each size in ``people``, from ``seed``."""

    def __init__(
        self, seed: int, people: Sequence[int], depth: int, width: int, train: int, dev: int, test: int
    ) -> None:
        self._seed, self._people, self._depth, self._width = seed, tuple(people), depth, width
        self._counts = {"train": train, "dev": dev, "test": test}

    def items(self, split: str) -> Sequence[TaskItem]:
        """Sizes take turns, so that the first items hold all of them."""
        if split not in SPLITS:
            raise TaskDataError(f"split {split!r} is unknown: choose from {', '.join(SPLITS)}")
        try:
            sizes = [self._of_size(split, people) for people in self._people]
        except generator.NoMorePuzzles as error:
            raise TaskDataError(f"task.data.{split}={self._counts[split]}: {error}") from error
        return [item for items in zip(*sizes, strict=True) for item in items]

    def _of_size(self, split: str, people: int) -> list[TaskItem]:
        stream = generator.puzzles(self._seed, split, people, depth=self._depth, width=self._width)
        found = []
        for number, puzzle in enumerate(islice(stream, self._counts[split])):
            draw = Draw("kk words", self._seed, split, people, number)
            names = draw.sample(wording.NAMES, people)
            quiz = wording.puzzle_text(puzzle, names, draw)
            found.append(_item(f"kk{people}_{split}_{number}", quiz, names, puzzle.solution, puzzle.statements))
        return found


class PuzzleFiles:
    """Puzzles of files (jsonl or parquet), one list of files a split."""

    def __init__(self, train: Sequence[str], dev: Sequence[str], test: Sequence[str]) -> None:
        self._files = {"train": tuple(train), "dev": tuple(dev), "test": tuple(test)}
        if not any(self._files.values()):
            raise TaskDataError("task.data.train, .dev and .test are all empty: name at least one file")

    def items(self, split: str) -> Sequence[TaskItem]:
        files = self._files.get(split)
        if not files:
            raise EmptySplit(f"no puzzles for split {split!r}: set task.data.{split}=[file]")
        found: dict[str, TaskItem] = {}
        for file in files:
            for where, row in read_rows(file):
                item = read_puzzle(row, where)
                if item.id in found:
                    raise TaskDataError(f"{where}: id {item.id!r} was used already")
                found[item.id] = item
        return list(found.values())


def read_puzzle(row: dict[str, Any], where: str) -> TaskItem:
    """One row: ``quiz``, ``names``, ``solution`` (true is a knight); ``statements``, ``id`` and ``prompt`` where it
    has them.

    Where it has statements they must have the recorded solution, and no other. A row without an id gets one from its
    text. Raises TaskDataError with the place and the key.
    """
    quiz = need_text(row, where, "quiz")
    names, solution = need(row, where, "names"), need(row, where, "solution")
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names) or not names:
        raise TaskDataError(f"{where}: 'names' should be a list of names, not {names!r}")
    if len({name.casefold() for name in names}) != len(names):
        raise TaskDataError(f"{where}: 'names' holds one name twice: {names!r}")
    if not isinstance(solution, list) or not all(isinstance(value, bool) for value in solution):
        raise TaskDataError(f"{where}: 'solution' should be a list of true and false, not {solution!r}")
    if len(solution) != len(names):
        raise TaskDataError(f"{where}: 'solution' has {len(solution)} values for {len(names)} names")
    statements = _statements(row.get("statements"), where)
    if statements is not None:
        try:
            found = solve(statements)
        except ValueError as error:
            raise TaskDataError(f"{where}: 'statements': {error}") from error
        if found != [tuple(solution)]:
            raise TaskDataError(f"{where}: 'solution' is {solution}, but the statements have the solutions {found}")
    name = str(row.get("id") or f"kk{len(names)}_{Draw(quiz).below(2**48):012x}")
    extra = {"prompt": row["prompt"]} if row.get("prompt") is not None else {}
    return _item(name, quiz, names, solution, statements, extra)


def _statements(value: Any, where: str) -> tuple[Any, ...] | None:
    """The statements as nested tuples: the public sets hold them as the text of a Python tuple, ours as lists."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise TaskDataError(f"{where}: 'statements' cannot be read: {error}") from error
    if not isinstance(value, list | tuple):
        raise TaskDataError(f"{where}: 'statements' should be a list, not {value!r}")
    return tuple(_nested(part) for part in value)


def _nested(value: Any) -> Any:
    return tuple(_nested(part) for part in value) if isinstance(value, list | tuple) else value


def _item(
    name: str,
    quiz: str,
    names: Sequence[str],
    solution: Sequence[bool],
    statements: Sequence[Any] | None,
    extra: dict[str, Any] | None = None,
) -> TaskItem:
    meta = {
        "people": len(names),
        "part": f"{len(names)} people",
        "names": list(names),
        "solution": list(solution),
        "statements": statements,
    }
    return TaskItem(name, quiz, (wording.identities(names, solution),), meta | (extra or {}))

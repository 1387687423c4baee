"""Where questions come from: the miniwiki generator, or jsonl files in the Search-R1 / FlashRAG layout."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks import miniwiki
from tasks.base import TaskDataError, TaskItem
from tasks.search.scoring import normalise_answer

SPLITS = ("train", "dev", "test")


class Questions(Protocol):
    """A source of items."""

    def items(self, split: str) -> Sequence[TaskItem]:
        """All items of ``train``, ``dev`` or ``test``, in a fixed order. Raises TaskDataError."""
        ...


class MiniwikiQuestions:
    """Questions about the generated encyclopedia of ``seed`` and ``passages``, of the given types."""

    def __init__(self, seed: int, passages: int, question_types: Sequence[str]) -> None:
        self._world = miniwiki.generate(seed, passages)
        self._types = tuple(question_types)

    def items(self, split: str) -> Sequence[TaskItem]:
        return self._world.questions(_known(split), self._types)


class JsonlQuestions:
    """Questions of jsonl files (``.gz`` too), one object a line: ``id``, ``question``, ``golden_answers``.

    Where ``dev`` or ``test`` has no file, ``eval_fraction`` of the rows of ``train`` is held out for it
    (where both have none, half of that each). The choice hashes the normalised question: it depends
    neither on the order of the rows nor on their ids, and a repeated question never stands on both sides.
    """

    def __init__(self, train: str | None, dev: str | None, test: str | None, eval_fraction: float) -> None:
        self._files = {"train": train, "dev": dev, "test": test}
        self._eval_fraction = eval_fraction
        if not any(self._files.values()):
            raise TaskDataError("task.data.train, .dev and .test are all empty: name at least one jsonl file")

    def items(self, split: str) -> Sequence[TaskItem]:
        own_file = self._files[_known(split)]
        if own_file is not None and split != "train":
            return list(read_jsonl(own_file))
        if self._files["train"] is None:
            raise TaskDataError(f"no questions for split {split!r}: set task.data.{split} or task.data.train")
        items = [i for i in read_jsonl(self._files["train"]) if self._split_of(i.question) == split]
        if not items:
            raise EmptySplit(
                f"{self._files['train']}: no row falls in split {split!r} with "
                f"task.data.eval_fraction={self._eval_fraction}; set task.data.{split} or another fraction"
            )
        return items

    def _split_of(self, question: str) -> str:
        held_out = [split for split in ("dev", "test") if self._files[split] is None]
        place = _unit_hash(normalise_answer(question))
        if not held_out or place >= self._eval_fraction:
            return "train"
        return held_out[min(int(place / self._eval_fraction * len(held_out)), len(held_out) - 1)]


class EmptySplit(TaskDataError):
    """No row was held out for a split that has no file of its own."""


def read_jsonl(path: str | Path) -> Iterator[TaskItem]:
    """The items of one file. Keys beyond the three go to ``meta``; an ``oracle`` key holds search queries.

    Raises TaskDataError with file, line and key for a row that cannot be used.
    """
    path = Path(path)
    if not path.is_file():
        raise TaskDataError(f"{path}: no such file")
    seen: dict[str, int] = {}
    line = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    yield _item(text, f"{path}:{line}", seen, line)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TaskDataError(f"{path}: unreadable after line {line}: {error}") from error
    if not seen:
        raise TaskDataError(f"{path}: holds no rows")


def gold_answers(value: Any) -> tuple[str, ...]:
    """One answer or many (text, list, tuple, array) as a tuple; ValueError says what is wrong."""
    if hasattr(value, "tolist"):  # a numpy array, as parquet readers give; numpy itself is not needed here
        value = value.tolist()
    answers = (value,) if isinstance(value, str) else value
    if not isinstance(answers, list | tuple) or not answers:
        raise ValueError(f"should be a text or a non-empty list of texts, not {value!r}")
    for answer in answers:
        if not isinstance(answer, str) or not answer.strip():
            raise ValueError(f"holds {answer!r}, which is not an answer")
    return tuple(answers)


def _item(text: str, where: str, seen: dict[str, int], line: int) -> TaskItem:
    try:
        row = json.loads(text)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # "\ud800" is legal JSON, but no text
        raise TaskDataError(f"{where}: holds a lone surrogate, which is not text") from error
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise TaskDataError(f"{where}: should be an object, not {type(row).__name__}")
    for key in ("id", "question", "golden_answers"):
        if key not in row:
            raise TaskDataError(f"{where}: key {key!r} is missing (there are: {', '.join(row) or 'none'})")
    name, question = str(row.pop("id")), row.pop("question")
    if not isinstance(question, str) or not question.strip():
        raise TaskDataError(f"{where}: 'question' should be a text, not {question!r}")
    if name in seen:
        raise TaskDataError(f"{where}: id {name!r} was used on line {seen[name]} already")
    seen[name] = line
    try:
        gold = gold_answers(row.pop("golden_answers"))
    except ValueError as error:
        raise TaskDataError(f"{where}: 'golden_answers' {error}") from error
    queries = row.get("oracle", [])
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise TaskDataError(f"{where}: 'oracle' should be a list of search queries, not {queries!r}")
    return TaskItem(name, question.strip(), gold, row)


def _known(split: str) -> str:
    if split not in SPLITS:
        raise TaskDataError(f"split {split!r} is unknown: choose from {', '.join(SPLITS)}")
    return split


def _unit_hash(text: str) -> float:
    """A number in [0, 1) that depends on the text alone, on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64

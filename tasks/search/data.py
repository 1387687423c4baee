"""Where questions come from: the miniwiki generator, or files in the Search-R1 / FlashRAG layout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks import miniwiki
from tasks.base import EmptySplit, TaskDataError, TaskItem
from tasks.rows import need, need_text, read_rows
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
    """Questions of files (jsonl or parquet): ``id``, ``question``, ``golden_answers``.

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
            raise EmptySplit(f"no questions for split {split!r}: set task.data.{split} or task.data.train")
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


def read_jsonl(path: str | Path) -> Iterator[TaskItem]:
    """The items of one file (see ``tasks.rows.read_rows`` for the formats). Keys beyond the three go to ``meta``; an
    ``oracle`` key holds search queries, ``prompt`` a ready prompt. Golds may also stand where Search-R1's parquet has
    them, in ``reward_model.ground_truth.target``.

    Raises TaskDataError with file, line and key for a row that cannot be used.
    """
    seen: dict[str, str] = {}
    for where, row in read_rows(path):
        yield _item(row, where, seen)


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


def _item(row: dict[str, Any], where: str, seen: dict[str, str]) -> TaskItem:
    name, question = str(need(row, where, "id")), need_text(row, where, "question")
    if name in seen:
        raise TaskDataError(f"{where}: id {name!r} was used on {seen[name]} already")
    seen[name] = f"line {where.rpartition(':')[2].strip()}"
    reward = row.get("reward_model")
    truth = reward.get("ground_truth") if isinstance(reward, dict) else None
    if row.get("golden_answers") is None and isinstance(truth, dict):
        row["golden_answers"] = truth.get("target")
    try:
        gold = gold_answers(need(row, where, "golden_answers"))
    except ValueError as error:
        raise TaskDataError(f"{where}: 'golden_answers' {error}") from error
    queries = row.get("oracle", [])
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise TaskDataError(f"{where}: 'oracle' should be a list of search queries, not {queries!r}")
    rest = {key: value for key, value in row.items() if key not in ("id", "question", "golden_answers")}
    return TaskItem(name, question.strip(), gold, rest)


def _known(split: str) -> str:
    if split not in SPLITS:
        raise TaskDataError(f"split {split!r} is unknown: choose from {', '.join(SPLITS)}")
    return split


def _unit_hash(text: str) -> float:
    """A number in [0, 1) that depends on the text alone, on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64

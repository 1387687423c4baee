"""Puzzles from a seed: random statements, kept where exactly one assignment fits. Same seed, same puzzles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.draw import Draw
from tasks.kk.statements import Statement, everything, solutions_of_tables, truth_table

MIN_PEOPLE, MAX_PEOPLE = 2, 8
SPLIT_SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}
# So many draws without a new puzzle, and there are no more: a split of two people holds a few dozen.
_MAX_MISSES = 20_000
_COMPOUND = ("not", "and", "or", "->", "<=>")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Person i says ``statements[i]`` and is a knight where ``solution[i]``; no other assignment fits."""

    statements: tuple[Statement, ...]
    solution: tuple[bool, ...]


class NoMorePuzzles(ValueError):
    """There are not as many different puzzles of this shape as were asked for."""


def puzzles(seed: int, split: str, people: int, *, depth: int = 2, width: int = 2) -> Iterator[Puzzle]:
    """Different puzzles without end (NoMorePuzzles where there are none left).

    ``depth`` bounds how deep statements nest (2: "Ann is a knave or Bob is a knight"), ``width`` how many parts an
    "and" or "or" has. Two puzzles whose speakers say logically the same are one and the same: neither comes twice,
    and which split it belongs to follows from its logic alone, so that no seed's training set holds a puzzle of
    another seed's test set.

    Raises ValueError for ``people``, ``depth`` or ``width`` out of range.
    """
    if not MIN_PEOPLE <= people <= MAX_PEOPLE:
        raise ValueError(f"people={people} is outside {MIN_PEOPLE} to {MAX_PEOPLE}")
    if depth < 2:
        # "Ann is a knave" alone: where an assignment fits, so does its opposite.
        raise ValueError(f"depth={depth} is below 2: such statements never leave exactly one solution")
    if width < 2:
        raise ValueError(f"width={width} is below 2")
    return _stream(Draw("kk", seed, split, people, depth, width), split, people, depth, width)


def _stream(draw: Draw, split: str, people: int, depth: int, width: int) -> Iterator[Puzzle]:
    seen: set[tuple[int, ...]] = set()
    misses = 0
    while True:
        spoken = tuple(_statement(draw, people, depth, width) for _ in range(people))
        tables = tuple(truth_table(statement, people) for statement in spoken)
        fitting = solutions_of_tables(tables, people)
        if not _is_power_of_two(fitting) or tables in seen or split_of(tables, people) != split:
            misses += 1
            if misses > _MAX_MISSES:
                raise NoMorePuzzles(
                    f"no more different puzzles of {people} people with depth={depth} and width={width} in split "
                    f"{split!r} after {len(seen)}; ask for fewer, more people, or deeper statements"
                )
            continue
        seen.add(tables)
        misses = 0
        assignment = fitting.bit_length() - 1
        yield Puzzle(spoken, tuple(bool(assignment >> person & 1) for person in range(people)))


def split_of(tables: tuple[int, ...], people: int) -> str:
    """The split that a puzzle belongs to, whatever the seed: a hash of what its speakers say."""
    digest = hashlib.sha256(repr((people, tables)).encode()).digest()
    place = int.from_bytes(digest[:8]) / 2**64
    for split, share in SPLIT_SHARES.items():
        if place < share:
            return split
        place -= share
    return "test"


def _statement(draw: Draw, people: int, depth: int, width: int) -> Statement:
    """A random statement that is neither always true nor always false (that would say nothing of anybody)."""
    while True:
        statement = _any_statement(draw, people, depth, width)
        if 0 < truth_table(statement, people) < everything(people):
            return statement


def _any_statement(draw: Draw, people: int, depth: int, width: int) -> Statement:
    kind = draw.one(("leaf", *_COMPOUND)) if depth > 1 else "leaf"
    if kind == "leaf":
        return draw.one(("telling-truth", "lying")), draw.below(people)
    if kind == "not":
        return kind, _any_statement(draw, people, depth - 1, width)
    count = draw.between(2, width) if kind in ("and", "or") else 2
    parts: dict[Statement, None] = {}
    while len(parts) < 2:  # "Ann is a knight and Ann is a knight" is said by nobody
        parts = dict.fromkeys(_any_statement(draw, people, depth - 1, width) for _ in range(count))
    return kind, *parts


def _is_power_of_two(table: int) -> bool:
    return table > 0 and table & (table - 1) == 0

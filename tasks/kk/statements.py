"""What islanders say, and who is what: statements as nested tuples, solved by trying every assignment.

A statement is ``("telling-truth", i)`` (person i is a knight), ``("lying", i)`` (a knave), ``("not", s)``, ``("and",
s, ...)``, ``("or", s, ...)``, ``("->", s, t)`` or ``("<=>", s, t)``: the language of the public sets (Xie et al.,
arXiv 2410.23123).

Its truth over all 2^n assignments is one integer, its *table*: bit ``a`` is set where it is true under assignment
``a``, in which person i is a knight exactly where bit i of ``a`` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

MAX_PEOPLE = 16  # 2^16 assignments in a table; the public sets stop at 8

Statement = tuple[Any, ...]


@cache
def _knight(person: int, people: int) -> int:
    """The table of "``person`` is a knight"."""
    return sum(1 << assignment for assignment in range(1 << people) if assignment >> person & 1)


def everything(people: int) -> int:
    """The table of what is always true."""
    return (1 << (1 << people)) - 1


def truth_table(statement: Statement, people: int) -> int:
    """The table of a statement about persons 0 to ``people - 1``.

    Raises ValueError, saying where, for what is no statement about them.
    """
    match statement:
        case ("telling-truth" | "lying" as kind, int(person)) if not isinstance(person, bool):
            if not 0 <= person < people:
                raise ValueError(f"{statement!r} is about person {person}, but there are {people}")
            table = _knight(person, people)
            return table if kind == "telling-truth" else table ^ everything(people)
        case ("not", inner):
            return truth_table(inner, people) ^ everything(people)
        case ("and", _, _, *_):
            table = everything(people)
            for part in statement[1:]:
                table &= truth_table(part, people)
            return table
        case ("or", _, _, *_):
            table = 0
            for part in statement[1:]:
                table |= truth_table(part, people)
            return table
        case ("->", premise, conclusion):
            return truth_table(premise, people) ^ everything(people) | truth_table(conclusion, people)
        case ("<=>", left, right):
            return truth_table(left, people) ^ truth_table(right, people) ^ everything(people)
    raise ValueError(f"{statement!r} is no statement")


def solutions_of_tables(tables: Sequence[int], people: int) -> int:
    """The assignments (as a table) in which every person who is a knight spoke the truth, and every knave lied."""
    fitting = everything(people)
    for person, table in enumerate(tables):
        fitting &= _knight(person, people) ^ table ^ everything(people)
    return fitting


def solve(statements: Sequence[Statement]) -> list[tuple[bool, ...]]:
    """Every assignment that fits what persons 0, 1, ... said; True is a knight. Raises ValueError."""
    people = len(statements)
    if not 1 <= people <= MAX_PEOPLE:
        raise ValueError(f"{people} people: 1 to {MAX_PEOPLE} can be solved")
    fitting = solutions_of_tables([truth_table(statement, people) for statement in statements], people)
    return [
        tuple(bool(assignment >> person & 1) for person in range(people))
        for assignment in range(1 << people)
        if fitting >> assignment & 1
    ]

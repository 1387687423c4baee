"""The facts that can be asked for, each with several ways to ask and a short query that finds its passage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.miniwiki.entities import Company, Entity, Person, Town, Work
from tasks.miniwiki.prose import WORK_KINDS


@dataclass(frozen=True, slots=True)
class Relation:
    """``{x}`` in a text stands for the subject: its name, or a description of it in a two-hop question.

    ``value`` gives the answer's text, or the record that the answer names, or None where the article does not
    tell. ``descriptions`` describe the value ("the spouse of {x}"), where the value is a record.
    """

    name: str
    value: Callable[[Any], str | Entity | None]
    questions: tuple[str, ...]
    query: str
    descriptions: tuple[str, ...] = ()


_PERSON = (
    Relation(
        "birthplace",
        lambda person: person.birthplace,
        ("In which town was {x} born?", "Where was {x} born?", "What is the birthplace of {x}?"),
        "{x} born in town",
        ("the birthplace of {x}", "the town where {x} was born"),
    ),
    Relation(
        "birth year",
        lambda person: str(person.born),
        ("In what year was {x} born?", "When was {x} born?", "What is the birth year of {x}?"),
        "{x} birth year",
    ),
    Relation(
        "occupation",
        lambda person: person.occupation,
        ("What was the occupation of {x}?", "What was the trade of {x}?", "What work did {x} do?"),
        "{x} occupation",
    ),
    Relation(
        "spouse",
        lambda person: person.spouse,
        ("Who was {x} married to?", "Who married {x}?", "What was the name of the spouse of {x}?"),
        "{x} married",
        ("the spouse of {x}", "the person married to {x}"),
    ),
    Relation(
        "employer",
        lambda person: person.employer,
        ("Which company did {x} work for?", "Who employed {x}?", "At which company did {x} work?"),
        "{x} worked for company",
        ("the employer of {x}", "the company that employed {x}"),
    ),
)
_TOWN = (
    Relation(
        "founding year",
        lambda town: str(town.founded),
        ("In what year was {x} founded?", "When was {x} founded?", "What is the founding year of {x}?"),
        "{x} founded",
    ),
    Relation(
        "region",
        lambda town: town.region,
        ("In which region is {x}?", "In which region does {x} lie?", "Which region is {x} in?"),
        "{x} region",
    ),
    Relation(
        "known for",
        lambda town: town.known_for,
        ("What is {x} known for?", "What makes {x} well known?"),
        "{x} known for",
    ),
)
_COMPANY = (
    Relation(
        "founder",
        lambda company: company.founder,
        ("Who founded {x}?", "Who was the founder of {x}?", "By whom was {x} founded?"),
        "{x} founder",
        ("the founder of {x}", "the person who founded {x}"),
    ),
    Relation(
        "founding year",
        lambda company: str(company.founded),
        ("In what year was {x} founded?", "When was {x} founded?", "What is the founding year of {x}?"),
        "{x} founded",
    ),
    Relation(
        "home town",
        lambda company: company.town,
        ("In which town was {x} founded?", "What is the home town of {x}?"),
        "{x} town",
        ("the home town of {x}", "the town where {x} was founded"),
    ),
    Relation(
        "product",
        lambda company: company.product,
        ("What did {x} make?", "What was the product of {x}?", "Which goods were made by {x}?"),
        "{x} product",
    ),
)


def _work_relations(kind: str) -> tuple[Relation, ...]:
    words = WORK_KINDS[kind]
    return (
        Relation(
            "author",
            lambda work: work.author,
            (
                f"Who {words.did} {{x}}?",
                f"Who is the {words.maker} of {{x}}?",
                f"By whom was {{x}} {words.made}?",
            ),
            f"{{x}} {words.maker}",
            (f"the {words.maker} of {{x}}", f"the person who {words.did} {{x}}"),
        ),
        Relation(
            "year",
            lambda work: str(work.year),
            (
                f"In what year was {{x}} {words.appeared}?",
                f"When was {{x}} {words.appeared}?",
                f"In which year was the {kind} {{x}} {words.appeared}?",
            ),
            f"{{x}} {words.appeared}",
        ),
        Relation(
            "setting",
            lambda work: work.setting,
            ("In which town is {x} set?", "Where is {x} set?", f"In which town is the {kind} {{x}} set?"),
            "{x} set in town",
            ("the town where {x} is set", f"the town in which the {kind} {{x}} is set"),
        ),
    )


_WORK = {kind: _work_relations(kind) for kind in WORK_KINDS}


def relations_of(entity: Entity) -> tuple[Relation, ...]:
    """The relations that a record's own article can state."""
    match entity:
        case Person():
            return _PERSON
        case Town():
            return _TOWN
        case Company():
            return _COMPANY
        case Work():
            return _WORK[entity.kind]

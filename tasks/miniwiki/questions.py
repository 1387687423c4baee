"""Questions of four types, each with one right answer that follows from the passages its ``meta`` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks.base import TaskItem
from tasks.draw import Draw
from tasks.miniwiki.entities import Community, Company, Entity, Person, Town, Work
from tasks.miniwiki.prose import WORK_KINDS
from tasks.miniwiki.relations import Relation, relations_of


def _item(kind: str, key: tuple[str, ...], question: str, gold: str, titles: list[str], queries: list[str]) -> TaskItem:
    return TaskItem(
        id="/".join((kind, *key)),
        question=question[0].upper() + question[1:],
        gold=(gold,),
        meta={"type": kind, "hops": len(titles), "supporting_titles": titles, "oracle": queries},
    )


def _text(value: str | Entity) -> str:
    return value if isinstance(value, str) else value.name


def _one_hop(community: Community, draw: Draw) -> Iterator[TaskItem]:
    """One fact of one article: "Who founded Orvane Mills?"."""
    for entity in community.entities():
        for relation in relations_of(entity):
            value = relation.value(entity)
            if value is not None:
                yield _item(
                    "one_hop",
                    (entity.name, relation.name),
                    draw.one(relation.questions).format(x=entity.name),
                    _text(value),
                    [entity.name],
                    [relation.query.format(x=entity.name)],
                )


def _two_hop(community: Community, draw: Draw) -> Iterator[TaskItem]:
    """A fact of a record that is only described: "Where was the founder of Orvane Mills born?"."""
    for entity in community.entities():
        for first in relations_of(entity):
            bridge = first.value(entity)
            if bridge is None or isinstance(bridge, str):
                continue
            for second in relations_of(bridge):
                value = second.value(bridge)
                # A spouse's spouse is the subject itself: the question would hold its own answer.
                if value is None or value is entity:
                    continue
                described = draw.one(first.descriptions).format(x=entity.name)
                yield _item(
                    "two_hop",
                    (entity.name, first.name, second.name),
                    draw.one(second.questions).format(x=described),
                    _text(value),
                    [entity.name, bridge.name],
                    [first.query.format(x=entity.name), second.query.format(x=bridge.name)],
                )


def _born(entity: Entity) -> int:
    assert isinstance(entity, Person)
    return entity.born


def _founded(entity: Entity) -> int:
    assert isinstance(entity, Town | Company)
    return entity.founded


def _appeared(entity: Entity) -> int:
    assert isinstance(entity, Work)
    return entity.year


# What can be compared: records of one kind, their year, the relation that states it, and the ways to ask.
_COMPARISONS: tuple[tuple[Callable[[Community], list], Callable[[Entity], int], str, tuple[str, ...]], ...] = (
    (
        lambda community: community.people,
        _born,
        "birth year",
        ("Who was born earlier, {a} or {b}?", "Which of the two was born first, {a} or {b}?"),
    ),
    (
        lambda community: community.companies,
        _founded,
        "founding year",
        ("Which company was founded first, {a} or {b}?", "Which company is older, {a} or {b}?"),
    ),
    (
        lambda community: community.towns,
        _founded,
        "founding year",
        ("Which town was founded earlier, {a} or {b}?", "Which town is older, {a} or {b}?"),
    ),
    (
        lambda community: community.works,
        _appeared,
        "year",
        ("Which came out first, {a} or {b}?", "Which work is older, {a} or {b}?"),
    ),
)
_PARTNERS = 2  # comparisons that each record opens


def _relation(entity: Entity, name: str) -> Relation:
    return next(relation for relation in relations_of(entity) if relation.name == name)


def _pairs(records: list[Entity], draw: Draw) -> Iterator[tuple[Entity, Entity]]:
    """Each record with its next neighbours on a random circle: no pair comes twice."""
    circle = draw.shuffled(records)
    for step in range(1, _PARTNERS + 1):
        if len(circle) > 2 * step:
            for i, record in enumerate(circle):
                yield record, circle[(i + step) % len(circle)]


def _comparison(community: Community, draw: Draw) -> Iterator[TaskItem]:
    """Which of two is earlier; pairs with equal years are left out."""
    for records_of, year, relation, phrasings in _COMPARISONS:
        for a, b in _pairs(records_of(community), draw):
            if year(a) != year(b):
                yield _item(
                    "comparison",
                    (a.name, b.name, relation),
                    draw.one(phrasings).format(a=a.name, b=b.name),
                    min(a, b, key=year).name,
                    [a.name, b.name],
                    [_relation(record, relation).query.format(x=record.name) for record in (a, b)],
                )


def _yes_no(community: Community, draw: Draw) -> Iterator[TaskItem]:
    """Half yes, half no: is a stated fact true of one article, or do two articles agree on something."""
    for entity in community.entities():
        for relation, statement in _statements(entity):
            value = relation.value(entity)
            if value is None:
                continue
            true = draw.chance(0.5)
            claimed = value if true else _another(entity, relation, community, draw)
            if claimed is not None:
                yield _item(
                    "yes_no",
                    (entity.name, relation.name),
                    statement.format(x=entity.name, y=_text(claimed)),
                    "yes" if true else "no",
                    [entity.name],
                    [relation.query.format(x=entity.name)],
                )
    yield from _agreement(community.people, "birthplace", "Were {a} and {b} born in the same town?", draw)
    yield from _agreement(community.towns, "region", "Are {a} and {b} in the same region?", draw)


def _statements(entity: Entity) -> tuple[tuple[Relation, str], ...]:
    match entity:
        case Person():
            asked = {"birthplace": "Was {x} born in {y}?", "employer": "Did {x} work for {y}?"}
        case Town():
            asked = {"region": "Is {x} in the {y}?"}
        case Company():
            asked = {"founder": "Was {x} founded by {y}?"}
        case Work():
            asked = {"author": f"Was {{x}} {WORK_KINDS[entity.kind].made} by {{y}}?"}
    return tuple((_relation(entity, name), statement) for name, statement in asked.items())


def _another(entity: Entity, relation: Relation, community: Community, draw: Draw) -> str | None:
    """A plausible, wrong claim: the value another record has for the relation. None where all agree."""
    right = _text(relation.value(entity) or "")
    values = {
        _text(value)
        for other in community.entities()
        if type(other) is type(entity)
        for same in relations_of(other)
        if same.name == relation.name and (value := same.value(other)) is not None
    }
    wrong = sorted(values - {right})
    return draw.one(wrong) if wrong else None


def _agreement(records: list, name: str, phrasing: str, draw: Draw) -> Iterator[TaskItem]:
    """As many pairs that agree as pairs that do not."""
    shared: dict[str, list] = {}
    for record in records:
        shared.setdefault(_text(_relation(record, name).value(record) or ""), []).append(record)
    groups = [draw.shuffled(shared[value]) for value in sorted(shared)]
    same = [pair for group in groups for pair in zip(group[::2], group[1::2], strict=False)]
    different = [(a, b) for a, b in _pairs(records, draw) if _relation(a, name).value(a) != _relation(b, name).value(b)]
    for answer, pairs in (("yes", same), ("no", different[: len(same)])):
        for a, b in pairs:
            yield _item(
                "yes_no",
                (a.name, b.name, name),
                phrasing.format(a=a.name, b=b.name),
                answer,
                [a.name, b.name],
                [_relation(record, name).query.format(x=record.name) for record in (a, b)],
            )


QUESTION_TYPES: dict[str, Callable[[Community, Draw], Iterator[TaskItem]]] = {
    "one_hop": _one_hop,
    "two_hop": _two_hop,
    "comparison": _comparison,
    "yes_no": _yes_no,
}


def block_questions(kind: str, community: Community, draw: Draw) -> list[TaskItem]:
    """All questions of one type about one community."""
    return list(QUESTION_TYPES[kind](community, draw))

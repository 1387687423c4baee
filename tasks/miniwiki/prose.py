"""The text of an article: one to three short sentences, every fact of the record stated once.

About 25 to 40 tokens of a small language model: training on a CPU pays for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from tasks.draw import Draw
from tasks.miniwiki.entities import Company, Person, Town, Work


@dataclass(frozen=True, slots=True)
class WorkKind:
    made: str  # "written": the novel was ... by
    did: str  # "wrote": who ... the novel
    maker: str  # "author"
    appeared: str  # "published": the novel was ... in 1871


WORK_KINDS = {
    "novel": WorkKind("written", "wrote", "author", "published"),
    "play": WorkKind("written", "wrote", "author", "first staged"),
    "opera": WorkKind("composed", "composed", "composer", "first performed"),
    "painting": WorkKind("painted", "painted", "painter", "first shown"),
    "film": WorkKind("directed", "directed", "director", "released"),
}

_PERSON = (
    "{name} was {a_occupation} born in {town} in {born}.",
    "Born in {town} in {born}, {name} became {a_occupation}.",
    "{name}, {a_occupation}, was born in {born} in {town}.",
    "{name} was born in {town} in {born} and worked as {a_occupation}.",
    "{name} was born in {born} in the town of {town} and trained as {a_occupation}.",
)
_MARRIAGE = (
    "{surname} married {spouse} in {married}.",
    "In {married} {surname} married {spouse}.",
    "{surname} and {spouse} were married in {married}.",
    "The marriage to {spouse} took place in {married}.",
)
_EMPLOYER = (
    "{surname} worked for {company}.",
    "{surname} was employed by {company} for many years.",
    "Most of {surname}'s working life was spent at {company}.",
    "{surname} later joined {company}.",
)
_TOWN = (
    "{name} is a town in the {region}, founded in {founded} and known for its {known_for}.",
    "Known for its {known_for}, {name} is a town in the {region} that was founded in {founded}.",
    "{name} is a small town in the {region}. It was founded in {founded} and is known for its {known_for}.",
    "Founded in {founded}, {name} lies in the {region}. The town is known for its {known_for}.",
    "The town of {name} lies in the {region}. It dates from {founded} and its {known_for} is well known.",
)
_COMPANY = (
    "{name} was founded in {founded} by {founder} in {town}. It made {product}.",
    "{name} is a maker of {product}. {founder} founded it in {town} in {founded}.",
    "In {founded} {founder} founded {name} in {town} to make {product}.",
    "{name}, a company from {town}, makes {product}. It was founded by {founder} in {founded}.",
    "Based in {town}, {name} made {product}. Its founder was {founder}, who opened it in {founded}.",
)
_WORK = (
    "{name} is {a_kind} by {author}, {appeared} in {year}. It is set in {town}.",
    "{name} is {a_kind} {made} by {author} and {appeared} in {year}. Its setting is {town}.",
    "Set in {town}, {name} is {a_kind} by {author}. It was {appeared} in {year}.",
    "{author} {did} the {kind} {name}, which was {appeared} in {year} and is set in {town}.",
    "{name}, {appeared} in {year}, is {a_kind} set in {town}. It was {made} by {author}.",
)


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


@singledispatch
def article(entity: object, draw: Draw) -> str:
    """The article's text (without its title) of a record of ``entities.py``."""
    raise TypeError(f"no article for {type(entity).__name__}")


@article.register
def _person(entity: Person, draw: Draw) -> str:
    sentences = [
        draw.one(_PERSON).format(
            name=entity.name,
            a_occupation=with_article(entity.occupation),
            town=entity.birthplace.name,
            born=entity.born,
        )
    ]
    if entity.spouse is not None:
        sentences.append(
            draw.one(_MARRIAGE).format(surname=entity.surname, spouse=entity.spouse.name, married=entity.married)
        )
    if entity.employer is not None:
        sentences.append(draw.one(_EMPLOYER).format(surname=entity.surname, company=entity.employer.name))
    return " ".join(sentences)


@article.register
def _town(entity: Town, draw: Draw) -> str:
    return draw.one(_TOWN).format(
        name=entity.name, region=entity.region, founded=entity.founded, known_for=entity.known_for
    )


@article.register
def _company(entity: Company, draw: Draw) -> str:
    return draw.one(_COMPANY).format(
        name=entity.name,
        founded=entity.founded,
        founder=entity.founder.name,
        town=entity.town.name,
        product=entity.product,
    )


@article.register
def _work(entity: Work, draw: Draw) -> str:
    kind = WORK_KINDS[entity.kind]
    return draw.one(_WORK).format(
        name=entity.name,
        kind=entity.kind,
        a_kind=with_article(entity.kind),
        author=entity.author.name,
        made=kind.made,
        did=kind.did,
        appeared=kind.appeared,
        year=entity.year,
        town=entity.setting.name,
    )

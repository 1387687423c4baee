"""Fills one block of the world with records: who lives where, who married whom, who founded what."""

from __future__ import annotations

from tasks.draw import Draw
from tasks.miniwiki.entities import Community, Company, Person, Town, Work
from tasks.miniwiki.names import Names, words
from tasks.miniwiki.prose import WORK_KINDS

SPLIT_SHARES = {"train": 0.6, "dev": 0.2, "test": 0.2}
_TOWN_SHARE, _COMPANY_SHARE, _WORK_SHARE = 0.12, 0.14, 0.17  # of a block's passages; the rest are people
_PEOPLE_PER_SURNAME = 9
_FIRST_NAMES_PER_BLOCK = 40
_REGIONS_PER_BLOCK = 6
_MARRIED_SHARE, _EMPLOYED_SHARE = 0.45, 0.35

_OCCUPATIONS = words(
    "clockmaker baker surgeon teacher painter sailor botanist printer engraver architect blacksmith "
    "geologist carpenter tailor astronomer lawyer weaver gardener violinist chemist mapmaker journalist "
    "locksmith beekeeper shipwright physician stonemason potter organist miner"
)
_KNOWN_FOR = (
    *words("wool salt cheese honey cider lace silk paper pottery marble amber rope leather copper plums saffron"),
    *(
        "blue glass",
        "black tea",
        "smoked fish",
        "stone bridge",
        "clock tower",
        "wooden church",
        "horse market",
    ),
)
_PRODUCTS = words(
    "bicycles pianos umbrellas telescopes lanterns carpets candles matches anchors saddles kettles stoves "
    "buttons gloves hats barrels ladders scales toys bells compasses mirrors pencils razors violins"
)


def block_quotas(passages: int) -> dict[str, tuple[int, int, int, int]]:
    """Towns, people, companies and works of each split, adding up to ``passages``."""
    dev = round(passages * SPLIT_SHARES["dev"])
    test = round(passages * SPLIT_SHARES["test"])
    quotas = {}
    for split, size in (("train", passages - dev - test), ("dev", dev), ("test", test)):
        towns, companies, works = (round(size * share) for share in (_TOWN_SHARE, _COMPANY_SHARE, _WORK_SHARE))
        quotas[split] = (towns, size - towns - companies - works, companies, works)
    return quotas


def populate(names: Names, draw: Draw, block: int, passages: int, largest: int) -> list[Community]:
    """The three communities of block number ``block``.

    ``largest`` is the size of the world's largest block. Ranges of name numbers are laid out for it, so that
    no two blocks share a surname, a town, a company or a work.
    """
    quotas = block_quotas(passages)
    stride_towns, stride_companies, stride_works = _strides(largest)
    stride_surnames = largest // 2 // _PEOPLE_PER_SURNAME + 3
    regions = [names.region(block * _REGIONS_PER_BLOCK + i) for i in range(_REGIONS_PER_BLOCK)]
    firsts = [names.first(i) for i in draw.sample(range(names.first_count()), _FIRST_NAMES_PER_BLOCK)]
    surnames = [names.surname(block * stride_surnames + i) for i in range(stride_surnames)]
    people_names = draw.shuffled([(first, surname) for first in firsts for surname in surnames])
    town_names = iter([names.town(block * stride_towns + i) for i in range(stride_towns)])
    company_names = iter([names.company(block * stride_companies + i) for i in range(stride_companies)])
    work_names = iter([names.work(block * stride_works + i) for i in range(stride_works)])
    communities = []
    for split in SPLIT_SHARES:
        town_count, people_count, company_count, work_count = quotas[split]
        community = Community(split)
        for _ in range(town_count):
            community.towns.append(
                Town(next(town_names), draw.one(regions), draw.between(900, 1750), draw.one(_KNOWN_FOR))
            )
        for _ in range(people_count):
            first, surname = people_names.pop()
            community.people.append(
                Person(
                    first,
                    surname,
                    draw.between(1780, 1930),
                    draw.one(community.towns),
                    draw.one(_OCCUPATIONS),
                )
            )
        founders = draw.sample(community.people, company_count)
        for founder in founders:
            community.companies.append(
                Company(
                    next(company_names),
                    draw.one(community.towns),
                    founder,
                    founder.born + draw.between(22, 50),
                    draw.one(_PRODUCTS),
                )
            )
        for _ in range(work_count):
            author = draw.one(community.people)
            community.works.append(
                Work(
                    next(work_names),
                    draw.one(sorted(WORK_KINDS)),
                    author,
                    author.born + draw.between(20, 55),
                    draw.one(community.towns),
                )
            )
        _marry(community.people, draw)
        _employ(community, founders, draw)
        communities.append(community)
    return communities


def _strides(largest: int) -> tuple[int, int, int]:
    """Names of towns, companies and works that a block has for itself.

    Blocks differ in size by at most one, and rounding can give the smaller of two sizes one more of a kind.
    """
    sizes = [list(block_quotas(size).values()) for size in (largest - 1, largest)]
    towns, _, companies, works = (max(sum(quota[kind] for quota in size) for size in sizes) for kind in range(4))
    return towns, companies, works


def _marry(people: list[Person], draw: Draw) -> None:
    """Couples of nearly one age and of different surnames."""
    by_age = sorted(people, key=lambda person: (person.born, person.name))
    for one, other in zip(by_age[::2], by_age[1::2], strict=False):
        if one.surname != other.surname and draw.chance(_MARRIED_SHARE):
            one.spouse, other.spouse = other, one
            one.married = other.married = other.born + draw.between(20, 40)


def _employ(community: Community, founders: list[Person], draw: Draw) -> None:
    founding = {id(person) for person in founders}
    for person in community.people:
        if id(person) not in founding and draw.chance(_EMPLOYED_SHARE):
            # The company has to exist during the person's working life.
            open_then = [c for c in community.companies if 15 <= c.founded - person.born <= 45]
            if open_then:
                person.employer = draw.one(open_then)

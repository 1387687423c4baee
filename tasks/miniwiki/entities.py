"""What the encyclopedia is about: four kinds of records, whose relations hold the other record itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Town:
    name: str
    region: str
    founded: int  # year
    known_for: str


@dataclass(eq=False, slots=True)
class Person:
    first: str
    surname: str
    born: int  # year
    birthplace: Town
    occupation: str
    spouse: Person | None = None  # holds both ways: a.spouse is b exactly where b.spouse is a
    married: int | None = None  # year; the same for both
    employer: Company | None = None  # never the company that this person founded

    @property
    def name(self) -> str:
        return f"{self.first} {self.surname}"


@dataclass(eq=False, slots=True)
class Company:
    name: str
    town: Town
    founder: Person  # nobody founds two companies
    founded: int  # year
    product: str


@dataclass(eq=False, slots=True)
class Work:
    name: str
    kind: str  # a key of prose.WORK_KINDS
    author: Person
    year: int
    setting: Town


Entity = Town | Person | Company | Work


@dataclass(slots=True)
class Community:
    """Records of one split. No relation leaves it, so the splits share no person, town, company or work."""

    split: str  # "train" | "dev" | "test"
    towns: list[Town] = field(default_factory=list)
    people: list[Person] = field(default_factory=list)
    companies: list[Company] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)

    def entities(self) -> list[Entity]:
        return [*self.towns, *self.people, *self.companies, *self.works]

"""The world: a row of independent blocks, each with its own seed, so any size streams in constant memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile

from tasks.base import TaskItem
from tasks.draw import Draw
from tasks.miniwiki.entities import Community
from tasks.miniwiki.names import Names
from tasks.miniwiki.population import SPLIT_SHARES, populate
from tasks.miniwiki.prose import article
from tasks.miniwiki.questions import QUESTION_TYPES, block_questions

MIN_PASSAGES, MAX_PASSAGES = 300, 1_000_000
_BLOCK = 300  # passages of a block, at least


@dataclass(frozen=True, slots=True)
class Passage:
    id: str  # the row number, as text
    title: str
    text: str


class World:
    """A fictional encyclopedia. The same seed and size give the same bytes everywhere."""

    def __init__(self, seed: int, passages: int) -> None:
        if not MIN_PASSAGES <= passages <= MAX_PASSAGES:
            raise ValueError(f"passages={passages} is outside {MIN_PASSAGES}..{MAX_PASSAGES}")
        self.seed = seed
        self.size = passages
        self._names = Names(seed)

    @cached_property
    def passages(self) -> list[Passage]:
        return list(self.iter_passages())

    def iter_passages(self) -> Iterator[Passage]:
        """The passages in order of id, one block in memory at a time."""
        row = 0
        for block in range(self._blocks):
            draw = self._draw(block, "prose")
            entities = [e for community in self._communities(block) for e in community.entities()]
            for entity in draw.shuffled(entities):
                yield Passage(str(row), entity.name, article(entity, draw))
                row += 1

    def questions(self, split: str, types: Sequence[str]) -> list[TaskItem]:
        """Every question of a split, of the given types, in a seeded random order: a prefix is a fair sample.

        ``meta`` holds ``type``, ``hops``, ``supporting_titles`` and ``oracle`` (search queries, in order).
        Raises ValueError for an unknown split or type.
        """
        if split not in SPLIT_SHARES:
            raise ValueError(f"split={split!r} is unknown; miniwiki has {', '.join(SPLIT_SHARES)}")
        unknown = [kind for kind in types if kind not in QUESTION_TYPES]
        if unknown or not types:
            raise ValueError(f"question types {list(types)!r}: choose from {', '.join(QUESTION_TYPES)}")
        found: list[TaskItem] = []
        for block in range(self._blocks):
            for community in self._communities(block):
                if community.split == split:
                    for kind in QUESTION_TYPES:
                        if kind in types:
                            found += block_questions(kind, community, self._draw(block, split, kind))
        return Draw("miniwiki", self.seed, self.size, "order", split).shuffled(found)

    @property
    def _blocks(self) -> int:
        return self.size // _BLOCK

    def _communities(self, block: int) -> list[Community]:
        size, larger = divmod(self.size, self._blocks)
        return populate(self._names, self._draw(block, "people"), block, size + (block < larger), size + (larger > 0))

    def _draw(self, block: int, *purpose: str) -> Draw:
        return Draw("miniwiki", self.seed, self.size, block, *purpose)


def generate(seed: int, passages: int) -> World:
    """The world of ``seed`` with 300 to 1,000,000 passages. Raises ValueError for another size."""
    return World(seed, passages)


def write_corpus(path: str | Path, seed: int, passages: int) -> Path:
    """Write the passages as jsonl, in Search-R1's shape: ``{"id", "contents": "\\"Title\\"\\ntext"}``.

    The file appears under its name only when complete.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    world = generate(seed, passages)
    with NamedTemporaryFile("w", encoding="utf-8", newline="\n", dir=path.parent, delete=False) as file:
        try:
            for passage in world.iter_passages():
                row = {"id": passage.id, "contents": f'"{passage.title}"\n{passage.text}'}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)  # a temporary file is private to its owner
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    return path

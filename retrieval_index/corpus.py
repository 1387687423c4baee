"""Passages, and the store of an index folder that finds one by the byte offset of its line.

Nothing here holds a whole corpus in memory: beside the offsets, 8 bytes a passage while it is written.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrieval_index.errors import CorpusError, IndexIncomplete

PASSAGES_FILE = "passages.jsonl"
OFFSETS_FILE = "offsets.npy"


@dataclass(frozen=True, slots=True)
class Passage:
    """One unit of retrieval. ``title`` may be empty."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """The shape of Search-R1 and FlashRAG: the title in quotes, a line break, the text."""
        return f'"{self.title}"\n{self.text}' if self.title else self.text


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of Search-R1 ``contents``. A first line that is not in quotes is text, not a title."""
    first, line_break, rest = contents.partition("\n")
    stripped = first.strip()
    if line_break and len(stripped) >= 2 and stripped[0] == stripped[-1] == '"':
        return stripped[1:-1], rest
    return "", contents


def write_store(passages: Iterable[Passage], folder: Path, source: str = "the corpus") -> tuple[int, str]:
    """Write ``passages.jsonl`` and ``offsets.npy`` into ``folder``; return the row count and the sha256 of
    the former.

    The stored form is canonical (one object per line with id, title, text), so the sum depends on the
    passages and not on the file they came from. Raises CorpusError on an id that was seen before, or on no
    passage at all; it names ``source``.
    """
    offsets, ids = array("q"), array("Q")
    digest, position = hashlib.sha256(), 0
    with (folder / PASSAGES_FILE).open("wb") as file:
        for passage in passages:
            # a digest per id, not the id: ids may be long (URLs), and a set of 21 million takes gigabytes
            ids.append(int.from_bytes(hashlib.blake2b(passage.id.encode(), digest_size=8).digest()))
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            line = json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n"
            offsets.append(position)
            file.write(line)
            digest.update(line)
            position += len(line)
    rows = len(offsets)
    if not rows:
        raise CorpusError(f"{source} has no passages")
    offsets.append(position)
    np.save(folder / OFFSETS_FILE, np.frombuffer(offsets, dtype=np.int64))
    _check_ids(np.frombuffer(ids, dtype=np.uint64), PassageStore(folder), source)
    return rows, digest.hexdigest()


def _check_ids(digests: np.ndarray, store: PassageStore, source: str) -> None:
    ordered = np.sort(digests)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    seen: set[str] = set()
    for row in np.flatnonzero(np.isin(digests, twice)).tolist():
        if (identity := store[row].id) in seen:  # two ids of one digest are no fault
            raise CorpusError(
                f"{source}: passage {row + 1} has id {identity!r}, which an earlier passage has too; "
                "every passage needs an id of its own"
            )
        seen.add(identity)


class PassageStore:
    """Passages of an index folder by row number, read from disk (memory-mapped)."""

    def __init__(self, folder: Path) -> None:
        """Raises IndexIncomplete where a file is missing or the two do not belong together."""
        self.path = folder / PASSAGES_FILE
        for path in (self.path, folder / OFFSETS_FILE):
            if not path.is_file():
                raise IndexIncomplete(f"{path} is missing; build the index again")
        try:
            # [N + 1] int64: where each line starts, then the end of the file
            self._offsets: np.ndarray = np.load(folder / OFFSETS_FILE, mmap_mode="r")
            self._bytes = np.memmap(self.path, dtype=np.uint8, mode="r")
        except (ValueError, EOFError) as error:
            raise IndexIncomplete(f"{folder}: the passage store is damaged ({error}); build it again") from error
        if self._offsets.ndim != 1 or len(self._offsets) < 2 or int(self._offsets[-1]) != len(self._bytes):
            raise IndexIncomplete(
                f"{self.path} has {len(self._bytes)} bytes, {folder / OFFSETS_FILE} describes "
                f"{int(self._offsets[-1]) if self._offsets.size else 0}; build the index again"
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a store of {len(self)} passages")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        return Passage(**json.loads(self._bytes[start:end].tobytes()))

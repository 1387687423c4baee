"""Corpora: a streaming reader of jsonl files, and the passage store of an index folder.

Nothing here holds a whole corpus in memory: the reader yields one passage at a time, the store finds a
passage by the byte offset of its line.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

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


def read_jsonl(path: str | Path) -> Iterator[Passage]:
    """Stream the passages of a ``.jsonl`` or ``.jsonl.gz`` file, in order.

    A line is ``{"id", "contents"}`` with contents ``"Title"\\ntext``, or ``{"id", "title", "text"}``. A
    byte-order mark, CRLF line ends and blank lines change nothing. Raises CorpusError with file, line number
    and key.
    """
    path = Path(path)
    if not path.is_file():
        raise CorpusError(f"{path}: no such corpus file")
    with _open(path) as file:
        number = 0
        try:
            for number, raw in enumerate(file, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    yield _parse(line, f"{path}:{number}")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CorpusError(f"{path}:{number + 1}: not a whole gzip file ({error})") from error


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    with path.open("rb") as plain:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=plain) as unzipped:
                yield unzipped  # type: ignore[misc]  # GzipFile reads like a BinaryIO
        else:
            yield plain


def _parse(line: bytes, where: str) -> Passage:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not a line of JSON ({error})") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: expected an object with keys id and contents, found {type(row).__name__}")
    if "id" not in row:
        raise CorpusError(f"{where}: key 'id' is missing")
    identity = row["id"]
    if isinstance(identity, str) and identity:
        identity = _text(row, "id", where)
    elif isinstance(identity, bool) or not isinstance(identity, int):
        raise CorpusError(f"{where}: key 'id' must be a non-empty string or an integer, found {identity!r}")
    if "contents" in row:
        title, text = split_contents(_text(row, "contents", where))
    elif "text" in row:
        title, text = _text(row, "title", where) if "title" in row else "", _text(row, "text", where)
    else:
        raise CorpusError(f"{where}: key 'contents' (or 'title' and 'text') is missing")
    if not (title.strip() or text.strip()):
        raise CorpusError(f"{where}: the passage is empty")
    return Passage(str(identity), title, text)


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise CorpusError(f"{where}: key {key!r} must be a string, found {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:  # "\ud800" is legal JSON but not text: it could not be stored or served
        raise CorpusError(f"{where}: key {key!r} holds a lone surrogate at character {error.start}") from error
    return value


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
    offsets = bytearray()
    digest, position = hashlib.sha256(), 0
    seen: set[bytes] = set()
    with (folder / PASSAGES_FILE).open("wb") as file:
        for row, passage in enumerate(passages):
            # a digest per id, not the id: ids may be long (URLs), and there may be tens of millions
            key = hashlib.blake2b(passage.id.encode(), digest_size=8).digest()
            if key in seen:
                raise CorpusError(
                    f"{source}: passage {row + 1} has id {passage.id!r}, which an earlier passage has too; "
                    "every passage needs an id of its own"
                )
            seen.add(key)
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            line = json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n"
            offsets += position.to_bytes(8, "little")
            file.write(line)
            digest.update(line)
            position += len(line)
    rows = len(offsets) // 8
    if not rows:
        raise CorpusError(f"{source} has no passages")
    offsets += position.to_bytes(8, "little")
    np.save(folder / OFFSETS_FILE, np.frombuffer(offsets, dtype="<i8"))
    return rows, digest.hexdigest()


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

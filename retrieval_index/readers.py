"""Streaming readers of corpus files: jsonl, DPR's tsv, parquet; the first two also as .gz and .zst."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from retrieval_index.corpus import Passage, split_contents
from retrieval_index.errors import CorpusError

COMPRESSED = (".gz", ".zst")
FORMATS = (".jsonl", ".json", ".tsv", ".parquet")
# psgs_w100 has fields far below this; csv's own limit of 131,072 is too near to long web pages
MAX_FIELD = 2**24


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Stream the passages of a file, or of all corpus files in a folder (by name), in order.

    ``.jsonl``: lines of ``{"id", "contents"}`` with contents ``"Title"\\ntext`` (Search-R1, FlashRAG), or ``{"id",
    "title", "text"}``. ``.parquet``: columns of the same names. ``.tsv``: a header with ``id``, ``text`` and maybe
    ``title``, as DPR's psgs_w100.tsv. A byte-order mark, CRLF line ends and blank lines change nothing. Raises
    CorpusError with file, line (parquet: row) and key.
    """
    for file in corpus_files(path):
        match corpus_format(file):
            case ".tsv":
                yield from _read_tsv(file)
            case ".parquet":
                yield from _read_parquet(file)
            case _:
                yield from _read_jsonl(file)


def corpus_files(path: str | Path) -> list[Path]:
    """The files of a corpus, in order. Raises CorpusError where there is none."""
    path = Path(path)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if _suffix(file) in FORMATS]
        if not files:
            raise CorpusError(f"{path}: no corpus file in this folder; known formats are {_known()}")
        return files
    if not path.is_file():
        raise CorpusError(f"{path}: no such corpus file")
    corpus_format(path)
    return [path]


def corpus_format(file: Path) -> str:
    """One of FORMATS. Raises CorpusError where the name ends in none of them."""
    if (suffix := _suffix(file)) not in FORMATS:
        raise CorpusError(f"{file}: unknown corpus format; name it by one of {_known()}")
    return suffix


def _suffix(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = bool(suffixes) and suffixes[-1] in COMPRESSED
    inner = suffixes[-2:-1] if packed else suffixes[-1:]
    return "" if packed and inner == [".parquet"] else "".join(inner)


def _known() -> str:
    return f"{', '.join(FORMATS)}; all but the last also with {' or '.join(COMPRESSED)}"


@contextmanager
def open_binary(path: Path, raw: BinaryIO | None = None) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed by its name's ending; ``raw`` is read in place of opening ``path``.

    Reading raises OSError, EOFError or zlib.error where the compressed stream is damaged or cut short.
    """
    with path.open("rb") if raw is None else raw as plain:
        if path.suffix.lower() == ".gz":
            import gzip

            with gzip.GzipFile(fileobj=plain) as unzipped:
                yield unzipped  # type: ignore[misc]  # GzipFile reads like a BinaryIO
        elif path.suffix.lower() == ".zst":
            import pyarrow

            # it tells a stream that was cut short, which the zstandard package does not
            with pyarrow.CompressedInputStream(pyarrow.PythonFile(plain, "r"), "zstd") as unzipped:
                yield io.BufferedReader(unzipped, 1 << 20)
        else:
            yield plain


@contextmanager
def _damage_is_named(path: Path, line: list[int]) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        kind = {".gz": "gzip ", ".zst": "zstd "}.get(path.suffix.lower(), "")
        raise CorpusError(f"{path}:{line[0] + 1}: not a whole {kind}file ({error})") from error


def _read_jsonl(path: Path) -> Iterator[Passage]:
    at = [0]
    with _damage_is_named(path, at), open_binary(path) as file:
        for number, raw in enumerate(file, start=1):
            at[0] = number
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if line.strip():
                yield _parse(line, f"{path}:{number}")


def _read_tsv(path: Path) -> Iterator[Passage]:
    csv.field_size_limit(MAX_FIELD)
    at = [0]
    with _damage_is_named(path, at), open_binary(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            rows = csv.reader(text, delimiter="\t", strict=True)
            header = next(rows, [])
            if not {"id", "text"} <= set(header):
                raise CorpusError(f"{path}:1: the header must name id, text and maybe title, found {header}")
            for fields in rows:
                at[0] = rows.line_num
                where = f"{path}:{rows.line_num}"
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise CorpusError(f"{where}: {len(fields)} fields, the header has {len(header)}")
                yield _passage(dict(zip(header, fields, strict=True)), where)
        except (csv.Error, UnicodeDecodeError) as error:
            raise CorpusError(f"{path}:{at[0] + 1}: not a line of tab-separated values ({error})") from error
        finally:
            text.detach()  # the file is closed by whoever opened it


def _read_parquet(path: Path) -> Iterator[Passage]:
    import pyarrow
    import pyarrow.parquet as parquet

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in ("id", "title", "text", "contents") if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=2048, columns=columns):
                for record in batch.to_pylist():
                    row += 1
                    yield _passage({key: value for key, value in record.items() if value is not None}, f"{path}:{row}")
    except pyarrow.ArrowException as error:
        raise CorpusError(f"{path}:{row + 1}: not a whole parquet file ({error})") from error


def _parse(line: bytes, where: str) -> Passage:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not a line of JSON ({error})") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: expected an object with keys id and contents, found {type(row).__name__}")
    return _passage(row, where)


def _passage(row: dict[str, Any], where: str) -> Passage:
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


def sample_rows(path: str | Path, count: int) -> tuple[list[Passage], int, bool]:
    """The first ``count`` passages, the number of passages in the whole corpus, and whether that is exact.

    The number is counted where the file says it or where it ends within the sample; else it is extrapolated from the
    bytes of the file that the sample took.
    """
    import pyarrow.parquet as parquet

    files = corpus_files(path)
    if all(corpus_format(file) == ".parquet" for file in files):
        rows = sum(parquet.read_metadata(file).num_rows for file in files)
        return _first(read_corpus(path), count), rows, True
    passages = _first(read_corpus(path), count + 1)
    if len(passages) <= count:
        return passages, len(passages), True
    total = sum(file.stat().st_size for file in files)
    return passages[:count], max(count + 1, round(total / _bytes_per_row(files[0], count))), False


def _bytes_per_row(file: Path, count: int) -> float:
    with file.open("rb") as raw, open_binary(file, raw) as text:
        lines = 0
        for _ in text:
            lines += 1
            if lines >= count:
                break
        return max(raw.tell(), 1) / max(lines, 1)


def _first(passages: Iterable[Passage], count: int) -> list[Passage]:
    found: list[Passage] = []
    for passage in passages:
        found.append(passage)
        if len(found) == count:
            break
    return found

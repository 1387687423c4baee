"""Rows of a data file, as dictionaries with their place: jsonl, JSON lists, parquet; a local file or one of the hub."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.base import TaskDataError

HUB = "hf://datasets/"


def read_rows(address: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(``file:line``, row) of each row of a file; a parquet file's and a JSON list's rows are counted from 1.

    ``address``: a path, or ``hf://datasets/<owner>/<name>/<file>`` (``<name>@<revision>`` too), which is downloaded
    into the hub's cache once. By ending: ``.parquet``, ``.json`` (one list) or json lines, ``.gz`` of the latter two
    as well.

    Raises TaskDataError, with the place, for what cannot be read, for a row that is no object and for a file without
    rows.
    """
    path = local_file(str(address))
    endings = [ending for ending in path.suffixes[-2:] if ending != ".gz"]
    kind = endings[-1] if endings else ""
    rows = _parquet(path) if kind == ".parquet" else _json_list(path) if kind == ".json" else _json_lines(path)
    empty = True
    for where, row in rows:
        if not isinstance(row, dict):
            raise TaskDataError(f"{where}: should be an object, not {type(row).__name__}")
        empty = False
        yield where, row
    if empty:
        raise TaskDataError(f"{path}: holds no rows")


def need(row: dict[str, Any], where: str, *keys: str) -> Any:
    """The value of the first of ``keys`` that the row has. Raises TaskDataError naming the missing key."""
    for key in keys:
        if row.get(key) is not None:
            return row[key]
    wanted = " or ".join(map(repr, keys))
    raise TaskDataError(f"{where}: key {wanted} is missing (there are: {', '.join(row) or 'none'})")


def need_text(row: dict[str, Any], where: str, *keys: str) -> str:
    """``need``, where the value has to be a text that is not empty."""
    value = need(row, where, *keys)
    if not isinstance(value, str) or not value.strip():
        raise TaskDataError(f"{where}: {keys[0]!r} should be a text, not {value!r}")
    return value


def local_file(address: str) -> Path:
    """The file of an address, downloaded if it is of the hub. Raises TaskDataError where there is none."""
    if not address.startswith(HUB):
        path = Path(address)
        if not path.is_file():
            raise TaskDataError(f"{path}: no such file")
        return path
    owner, _, rest = address.removeprefix(HUB).partition("/")
    name, _, file = rest.partition("/")
    name, _, revision = name.partition("@")
    if not (owner and name and file):
        raise TaskDataError(f"{address}: write {HUB}<owner>/<name>/<file>")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    offline = os.environ.get("AGENT_RL_OFFLINE") == "1"
    try:
        return Path(
            hf_hub_download(
                f"{owner}/{name}", file, repo_type="dataset", revision=revision or None, local_files_only=offline
            )
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        remedy = (
            "it is not in the hub's cache, and AGENT_RL_OFFLINE=1" if offline else f"cannot be downloaded: {reason}"
        )
        raise TaskDataError(f"{address}: {remedy}") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    line = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    yield f"{path}:{line}", _parsed(text, f"{path}:{line}")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TaskDataError(f"{path}: unreadable after line {line}: {error}") from error


def _json_list(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            rows = _parsed(file.read(), str(path))
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TaskDataError(f"{path}: unreadable: {error}") from error
    if not isinstance(rows, list):
        raise TaskDataError(f"{path}: should be a list of objects, not {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        # A conversation as a bare list (Open-Reasoner-Zero) gets a key to stand under.
        yield f"{path}: row {number}", {"turns": row} if isinstance(row, list) else row


def _parsed(text: str, where: str) -> Any:
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # "\ud800" is legal JSON, but no text
        raise TaskDataError(f"{where}: holds a lone surrogate, which is not text") from error
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{where}: not JSON: {error}") from error
    return value


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    except pa.ArrowException as error:
        raise TaskDataError(f"{path}: is not a parquet file that can be read: {error}") from error

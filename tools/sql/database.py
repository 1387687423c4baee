"""Database files, opened so that they can only be read."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

MIB = 2**20


class SqlUnavailable(Exception):
    """A database cannot be opened as asked; the text says what to do."""

    exit_code = 2


class QueryRefused(Exception):
    """The statement is not one that only reads, or it is wrong; the text is for whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """``more``: there were further rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool


class Database(Protocol):
    kind: str

    def fetch(self, query: str, max_rows: int) -> Rows:
        """Run one statement that reads. Raises QueryRefused."""
        ...


def open_database(path: str, memory_mb: int) -> Database:
    """Raises SqlUnavailable."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise SqlUnavailable(f"sql.databases: {path}: {error.strerror}") from error
    if head == b"SQLite format 3\0":
        return SqliteDatabase(path)
    if head[8:12] == b"DUCK":
        return DuckDatabase(path, memory_mb)
    raise SqlUnavailable(f"sql.databases: {path} is neither a SQLite nor a DuckDB file")


_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# functions that load code or pointers
_FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MIB,  # of one value: what is computed in one step cannot be interrupted
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


def _authorise(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


class SqliteDatabase:
    """Read-only by the open mode, and once more by SQLite's authorizer: reading is all that is compiled."""

    kind = "sqlite"

    def __init__(self, path: str) -> None:
        try:
            self._connection = sqlite3.connect(f"file:{quote(str(Path(path).resolve()))}?mode=ro", uri=True)
            self._connection.execute("PRAGMA trusted_schema=OFF")
            self._connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.Error as error:
            raise SqlUnavailable(f"sql.databases: {path}: {error}") from error
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        self._connection.set_authorizer(_authorise)

    def fetch(self, query: str, max_rows: int) -> Rows:
        try:
            cursor = self._connection.execute(query)
            rows = cursor.fetchmany(max_rows + 1)
            cursor.close()
        except sqlite3.Error as error:
            denied = "not authorized" in str(error) or "prohibited" in str(error)
            raise QueryRefused(f"only reading is allowed ({error})" if denied else str(error)) from None
        if cursor.description is None:
            raise QueryRefused("only reading is allowed: give one SELECT")
        columns = tuple(column[0] for column in cursor.description)
        return Rows(columns, rows[:max_rows], len(rows) > max_rows)


class DuckDatabase:
    """Read-only, with files, network, extensions and settings locked; SELECT and EXPLAIN are all that is run."""

    kind = "duckdb"

    def __init__(self, path: str, memory_mb: int) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise SqlUnavailable(f"sql.databases: {path} is a DuckDB file: pip install duckdb") from error
        settings: dict[str, Any] = {
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "temp_directory": "",
            "memory_limit": f"{memory_mb}MiB",
            "threads": "1",
            "lock_configuration": "true",
        }
        try:
            self._connection = duckdb.connect(str(Path(path).resolve()), read_only=True, config=settings)
        except duckdb.Error as error:
            raise SqlUnavailable(f"sql.databases: {path}: {error}") from error

    def fetch(self, query: str, max_rows: int) -> Rows:
        import duckdb

        try:
            statements = self._connection.extract_statements(query)
            if len(statements) != 1:
                raise QueryRefused(f"{len(statements)} statements given, one is allowed")
            kind = statements[0].type
            if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
                raise QueryRefused(f"only reading is allowed: give one SELECT, not {kind.name}")
            if kind == duckdb.StatementType.EXPLAIN and re.match(r"\s*explain\W+analyze", query, re.IGNORECASE):
                raise QueryRefused("only reading is allowed: EXPLAIN without ANALYZE")
            result = self._connection.execute(statements[0])
            columns = tuple(column[0] for column in result.description)
            rows = result.fetchmany(max_rows + 1)
        except duckdb.Error as error:
            raise QueryRefused(str(error)) from None
        return Rows(columns, rows[:max_rows], len(rows) > max_rows)

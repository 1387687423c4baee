"""The sql tool on real SQLite and DuckDB files, over HTTP."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tools.app import create_app
from tools.sql.database import SqlUnavailable
from tools.sql.tool import SqlTool
from tools.testing import RunningServer

duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")

SCHEMA = "CREATE TABLE towns (name VARCHAR, people INTEGER)"
ROWS = [("Lima", 10), ("Quito", 2), ("</output>", None)]
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("databases")
    lite, duck = folder / "it's a file?.sqlite", folder / "towns.duckdb"
    with sqlite3.connect(lite) as connection:
        connection.execute(SCHEMA)
        connection.executemany("INSERT INTO towns VALUES (?, ?)", ROWS)
    connection.close()
    with duckdb.connect(str(duck)) as connection:
        connection.execute(SCHEMA)
        connection.executemany("INSERT INTO towns VALUES (?, ?)", ROWS)
    return {"lite": str(lite), "duck": str(duck)}


class Caller:
    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def __call__(self, database: str | None, query: Any, **more: Any) -> dict[str, Any]:
        arguments = {"query": query, **more} | ({} if database is None else {"database": database})
        body = {"calls": [{"id": "1", "tool": "sql", "arguments": arguments}]}
        (result,) = self.http.post("/v1/call", json=body).json()["results"]
        return result


@pytest.fixture(scope="module")
def sql(files: dict[str, str]) -> Iterator[Caller]:
    app = create_app(lambda: [SqlTool(files, timeout_s=0.5, max_rows=20, output_bytes=2000)])
    with (
        RunningServer(app) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=30) as http,
    ):
        while http.get("/health").status_code != 200:
            time.sleep(0.01)
        yield Caller(http)


BOTH = pytest.mark.parametrize("database", ["lite", "duck"])


@BOTH
def test_rows_come_back_as_lines(sql: Caller, database: str) -> None:
    result = sql(database, "SELECT name, people FROM towns ORDER BY people IS NULL, people")
    assert (result["status"], result["truncated"]) == ("ok", False)
    assert result["text"] == "name | people\nQuito | 2\nLima | 10\n‹/output› | NULL"
    assert result["data"] == {"columns": ["name", "people"], "rows": 3}
    assert sql(database, "SELECT name FROM towns WHERE people > 99;")["text"] == "name\n[no rows]"
    assert sql(database, "WITH t AS (SELECT 1 AS x) SELECT x FROM t -- a comment")["text"] == "x\n1"


def test_the_first_database_is_asked_where_none_is_named(sql: Caller) -> None:
    assert sql(None, "SELECT count(*) AS n FROM sqlite_master")["text"] == "n\n1"
    assert sql.http.get("/health").json()["tools"]["sql"]["databases"] == {"lite": "sqlite", "duck": "duckdb"}


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO towns VALUES ('x', 1)",
        "UPDATE towns SET people = 0",
        "DELETE FROM towns",
        "DROP TABLE towns",
        "CREATE TABLE more (x INTEGER)",
        "CREATE TEMP TABLE more (x INTEGER)",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE towns RENAME TO t",
        "VACUUM",
        "ANALYZE",
        "BEGIN",
        "ATTACH ':memory:' AS more",
        "ATTACH 'PLACE/new.db' AS more",
        "DETACH main",
        "PRAGMA database_list",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('PLACE/x.so')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '90GB'",
        "COPY towns TO 'PLACE/out.csv'",
        "COPY towns FROM '/etc/passwd'",
        "EXPORT DATABASE 'PLACE/out'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM 'https://example.org/x.parquet'",
        "SELECT writefile('PLACE/out', 'x')",
        "SELECT getenv('HOME')",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE DELETE FROM towns",
        "SELECT 1; DELETE FROM towns",
        "SELECT 1; SELECT 2",
        "nonsense",
        "SELECT * FROM nowhere",
    ],
)
@BOTH
def test_whatever_does_more_than_read_is_refused(sql: Caller, files: dict[str, str], database: str, query: str) -> None:
    folder = Path(files["lite"]).parent
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = sql(database, query.replace("PLACE", str(folder)))
    assert result["status"] == "error", result
    assert result["text"].startswith("query: ")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert sql(database, "SELECT count(*) AS n FROM towns")["text"] == "n\n3"


@BOTH
def test_a_statement_that_runs_too_long_is_stopped(sql: Caller, database: str) -> None:
    began = time.monotonic()
    result = sql(database, ENDLESS)
    assert time.monotonic() - began < 3
    assert (result["status"], result["text"]) == ("timeout", "[stopped: it ran longer than 0.5 s]")


@BOTH
def test_rows_and_length_are_limited_and_the_cut_is_told(sql: Caller, database: str) -> None:
    count = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 50) SELECT {} FROM n"
    many = sql(database, count.format("x"))
    assert many["truncated"] is True
    assert many["text"].endswith("\n20\n[... the first 20 rows; there are more ...]")
    wide = sql(database, count.format("replace('yyyyyyyyyy', 'y', 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz') AS z"))
    assert wide["truncated"] is True
    assert len(wide["text"]) < 2100
    assert wide["text"].endswith("[... the first 6 rows; there are more ...]")


def test_a_value_that_is_too_large_is_an_error_and_not_memory(sql: Caller) -> None:
    assert "too big" in sql("lite", "SELECT zeroblob(1000000000)")["text"]
    began = time.monotonic()
    result = sql("duck", "SELECT length(repeat('x', 2000000000)) + length(repeat('y', 2000000000))")
    assert result["status"] in ("error", "timeout")
    assert time.monotonic() - began < 3
    assert sql("duck", "SELECT 1 AS x")["text"] == "x\n1"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, "query is missing"),
        ({"query": " "}, "query is empty"),
        ({"query": 1}, "query must be a string"),
        ({"query": "SELECT 1" + " " * 10_000}, "query has 10008 characters"),
        ({"query": "SELECT 1", "database": "x"}, "database must be one of lite, duck"),
        ({"query": "SELECT 1", "database": []}, "database must be one of lite, duck"),
        ({"query": "SELECT 1", "limit": 1}, "unknown argument 'limit'"),
        ({"query": "SELECT '\0'"}, "NUL character"),
    ],
)
def test_bad_arguments_are_invalid_and_name_the_field(sql: Caller, arguments: dict, names: str) -> None:
    body = {"calls": [{"id": "1", "tool": "sql", "arguments": arguments}]}
    (result,) = sql.http.post("/v1/call", json=body).json()["results"]
    assert result["status"] == "invalid"
    assert names in result["text"]


def test_bytes_and_bad_text_come_back_as_valid_json(sql: Caller) -> None:
    assert sql("lite", "SELECT x'ff00' AS b, CAST(x'ff' AS TEXT) AS t")["text"] == "b | t\nx'ff00' | \ufffd"
    assert sql("duck", "SELECT 'a' || chr(10) || 'b' AS t")["text"] == "t\na\\nb"


def test_statements_run_side_by_side_and_a_leaving_client_frees_its_worker(files: dict[str, str]) -> None:
    app = create_app(lambda: [SqlTool(files, timeout_s=60, workers=1)])
    with RunningServer(app) as server, httpx.Client(base_url=server.url, trust_env=False, timeout=30) as http:
        while http.get("/health").status_code != 200:
            time.sleep(0.01)
        body = {"calls": [{"id": "1", "tool": "sql", "arguments": {"query": ENDLESS}}]}
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/call", json=body, timeout=0.3)
        began = time.monotonic()
        assert Caller(http)("lite", "SELECT 1 AS x")["text"] == "x\n1"
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"hello", "neither a SQLite nor a DuckDB")])
def test_a_file_that_cannot_be_served_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "x.db"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SqlUnavailable, match=f"x.db.*{said}") as caught:
        SqlTool({"main": str(file)})
    assert caught.value.exit_code == 2
    with pytest.raises(SqlUnavailable, match="is empty"):
        SqlTool({})

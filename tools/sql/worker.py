"""The process that runs statements: questions in on stdin, answers out on stdout, a JSON object a line.

It is killed by the server where a statement runs too long, and by its own limits where the server is gone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

from tools.sql.database import MIB, Database, QueryRefused, Rows, SqlUnavailable, open_database

MAX_CELL_CHARS = 500
# beyond the limit that the server keeps: only a worker whose server died comes to it
ORPHAN_S = 5.0


def main(settings_json: str) -> None:
    settings = json.loads(settings_json)
    try:
        databases = {name: open_database(path, settings["memory_mb"]) for name, path in settings["databases"].items()}
    except SqlUnavailable as error:
        _say(failed=str(error))
        return
    _limit_memory(settings["memory_mb"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its workers
    _say(kinds={name: database.kind for name, database in databases.items()})
    for line in sys.stdin:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, settings["timeout_s"] + ORPHAN_S)  # SIGALRM ends the process
        _say(**_answer(databases[question["database"]], question["query"], settings))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(memory_mb: int) -> None:
    """Engines bound what they cache and sort, not what a single value takes."""
    if sys.platform != "linux":
        return
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    limit = now + 2 * memory_mb * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(database: Database, query: str, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        found = database.fetch(query, settings["max_rows"])
        return _rendered(found, settings["output_bytes"])
    except QueryRefused as error:
        return {"refused": str(error)[:2000]}
    except MemoryError:
        return {"refused": "it needed too much memory"}


def _rendered(found: Rows, output_bytes: int) -> dict[str, Any]:
    """One line a row, as many as fit."""
    lines = [" | ".join(found.columns)[:output_bytes]]
    used = len(lines[0].encode())
    for row in found.rows:
        line = " | ".join(map(_cell, row))
        used += len(line.encode()) + 1
        if used > output_bytes:
            break
        lines.append(line)
    truncated = found.more or len(lines) <= len(found.rows)
    if truncated:
        lines.append(f"[... the first {len(lines) - 1} rows; there are more ...]")
    elif not found.rows:
        lines.append("[no rows]")
    columns = [column[:100] for column in found.columns[:100]]
    return {"text": "\n".join(lines), "truncated": truncated, "columns": columns, "rows": len(found.rows)}


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    text = f"x'{value[:MAX_CELL_CHARS].hex()}'" if isinstance(value, bytes) else str(value)
    text = text[: MAX_CELL_CHARS + 1].replace("\n", "\\n").encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_CELL_CHARS else text[:MAX_CELL_CHARS] + "..."


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)

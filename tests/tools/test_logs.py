"""What a server's process writes to stderr: every line parses, and no client can forge one."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tools.app import create_app
from tools.testing import EchoTool, RunningServer

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "tok3n-of-the-test"
# `serve` itself, with a tool that can be slow or break
SERVE = """
import sys, threading, warnings
import tools.server
from tools.testing import EchoTool

def load(*_, **__):
    warnings.warn("a warning of a library")
    print("printed by a library", end="\\n\\n", file=sys.stderr)
    import logging
    logging.getLogger("lib").warning("%d", "not a number")
    thread = threading.Thread(target=lambda: {}["a thread's own fault"])
    thread.start()
    thread.join()
    return [EchoTool(run_s=0.3, shared=True)]

tools.server.load_tools = load
tools.server.description = lambda *_: "echo"
tools.server.serve(["sql"], port=0, max_batch=1, max_queue=3, log=sys.argv[1], access_log=True)
"""


def _echo(text: str, **arguments: Any) -> dict[str, Any]:
    return {"id": text, "tool": "echo", "arguments": {"text": text, **arguments}}


def _asked_of(form: str) -> tuple[str, list[str]]:
    """What a server of this form of log said in the end, on stdout and stderr, after requests of every kind."""
    command = [sys.executable, "-c", SERVE, form]
    environment = os.environ | {"AGENT_RL_TOOL_TOKEN": TOKEN}
    with (
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        contextlib.ExitStack() as at_last,
    ):
        at_last.callback(process.kill)  # where an assertion fails, nothing else would end it
        ready = process.stdout.readline()
        if not ready.startswith("ready: http://127.0.0.1:"):
            pytest.fail(process.stderr.read())
        url = ready.split()[1]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=url, headers=headers, trust_env=False) as http, ThreadPoolExecutor(5) as threads:

            def call(*calls: dict[str, Any]) -> int:
                return http.post("/v1/call", json={"calls": list(calls)}).status_code

            assert call(_echo("one"), _echo("one"), _echo("x") | {"tool": "not\na tool"}) == 200
            assert call(_echo("one"), _echo("two")) == 200
            assert call(_echo("broken", **{"raise": True})) == 500
            assert http.post("/v1/call", json={"calls": []}).status_code == 422
            assert httpx.post(f"{url}/v1/call", json={}, trust_env=False).status_code == 401
            assert sorted(threads.map(call, map(_echo, "abcde"))) == [200] * 4 + [429]
            forged = "/a%0AINFO%20tools.server:%20forged%0D%E2%80%A8%C2%85%22%7D%7B?token=sesame"
            assert http.get(forged).status_code == 404
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as raw:
            raw.settimeout(10)
            raw.sendall(b"no HTTP at all\r\n\r\n")
            raw.recv(100)
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    return ready, error.splitlines()  # which takes U+2028 and the like for ends of lines too


def test_every_line_of_a_json_log_is_one_object():
    ready, written = _asked_of("json")
    lines = [json.loads(line) for line in written]
    for line in lines:
        assert datetime.datetime.fromisoformat(line["time"]).utcoffset() == datetime.timedelta(0)
        assert {"level", "logger", "message"} <= set(line)
    by_logger: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_logger.setdefault(line["logger"], []).append(line)

    thread, told = by_logger["tools.server"]
    assert "a thread's own fault" in thread["exception"]
    assert told["message"] == ready.strip()
    assert "a warning of a library" in by_logger["py.warnings"][0]["message"]
    assert [line["message"] for line in by_logger["stderr"]] == ["printed by a library"]
    assert "cannot be formatted: '%d'" in by_logger["lib"][0]["message"]
    assert by_logger["tools.batcher"][0]["level"] == "ERROR"
    assert "RuntimeError: the tool broke" in by_logger["tools.batcher"][0]["exception"]
    assert by_logger["uvicorn.error"][0]["message"].startswith("Invalid HTTP request")

    answered = by_logger["tools.access_log"]
    assert sorted(line["status"] for line in answered) == sorted([200] * 6 + [500, 422, 401, 429, 404])
    first, again, broken = answered[:3]
    assert (first["method"], first["path"], first["client"], first["calls"]) == ("POST", "/v1/call", "127.0.0.1", 3)
    assert first["tools"]["echo"]["calls"] == 2
    assert 0.29 <= first["tools"]["echo"]["run_s"] < first["ms"] / 1000 < 3
    assert (first["tools"]["echo"]["cached"], again["tools"]["echo"]["cached"]) == (0, 1)
    assert list(first["tools"]) == ["echo"]  # the caller's own word for a tool is none
    assert (broken["status"], broken["tools"]["echo"]["calls"]) == (500, 1)
    (refused,) = [line for line in answered if line["status"] == 401]
    assert (refused["calls"], refused["tools"]) == (0, {})
    assert max(line["tools"]["echo"]["queued_s"] for line in answered if line["tools"]) > 0.1
    assert answered[-1]["path"] == '/a\nINFO tools.server: forged\r\u2028\x85"}{'
    assert not [line for line in written if TOKEN in line or "sesame" in line]


def test_a_text_log_has_lines_that_nobody_can_forge():
    _, written = _asked_of("text")
    answered = [line for line in written if line.startswith("INFO tools.access_log: ")]
    assert len(answered) == 11
    assert not [line for line in written if line.startswith("INFO tools.server")]
    assert answered[-1].count("forged") == 1
    assert not [line for line in written if TOKEN in line or "sesame" in line]


def test_an_error_at_the_start_is_a_json_line_too(tmp_path):
    command = [sys.executable, "-m", "agent_rl.cli", "serve-tools", f"index={tmp_path / 'none'}", "port=0", "log=json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "agent-rl build-index" in json.loads(line)["message"]
    command[-1] = "log=text"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("agent-rl: ")


def test_an_exception_that_nobody_foresaw_is_logged_as_500(caplog):
    app = create_app(lambda: [EchoTool()], access_log=True)

    async def call(_: Any) -> list[Any]:
        raise ArithmeticError("a bug")

    caplog.set_level(logging.INFO, "tools.access_log")
    with RunningServer(app) as server, httpx.Client(base_url=server.url, trust_env=False) as http:
        while http.get("/health").status_code != 200:
            pass
        caplog.clear()
        app.state.host.call = call
        assert http.post("/v1/call", json={"calls": [_echo("a")]}).status_code == 500
    (record,) = [record for record in caplog.records if record.name == "tools.access_log"]
    assert record.msg["status"] == 500


def test_without_it_no_request_pays_for_it():
    plain, logged = create_app(lambda: []), create_app(lambda: [], access_log=True)
    assert not plain.user_middleware
    assert len(logged.user_middleware) == 1
    assert type(plain.state.host).__name__ == "ToolHost"

"""The adapter, against a small service that answers as SandboxFusion's /run_code does and really runs the code."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from tools.app import create_app
from tools.load import load_tools
from tools.python.isolation import PythonUnavailable
from tools.testing import RunningServer


def service(seen: list[dict[str, Any]]) -> FastAPI:
    app = FastAPI()

    @app.post("/run_code")
    def run_code(body: dict[str, Any]) -> Any:
        seen.append(body)
        if "BROKEN" in body["code"]:
            return JSONResponse({"status": "SandboxError", "message": "no container", "run_result": None})
        if "HTTP500" in body["code"]:
            return JSONResponse({"detail": "oops"}, status_code=500)
        if "HTML" in body["code"]:
            return JSONResponse("not an object")
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-c", body["code"]],
                input=body["stdin"],
                capture_output=True,
                text=True,
                timeout=body["run_timeout"],
            )
        except subprocess.TimeoutExpired:
            run = {"status": "TimeLimitExceeded", "execution_time": body["run_timeout"], "stdout": "", "stderr": ""}
            return {"status": "Failed", "message": "", "compile_result": None, "run_result": run}
        run = {
            "status": "Finished",
            "execution_time": time.monotonic() - began,
            "return_code": done.returncode,
            "stdout": done.stdout,
            "stderr": done.stderr,
        }
        verdict = "Success" if done.returncode == 0 else "Failed"
        return {"status": verdict, "message": "", "compile_result": None, "run_result": run, "files": {}}

    return app


@contextmanager
def remote(**settings: Any) -> Iterator[tuple[httpx.Client, list[dict[str, Any]]]]:
    seen: list[dict[str, Any]] = []
    with RunningServer(service(seen)) as far:
        python = {"engine": "remote", "url": far.url + "/", "timeout_s": 1.0, **settings}
        app = create_app(lambda: load_tools(["python"], index="", search={}, python=python, sql={}))
        with (
            RunningServer(app) as near,
            httpx.Client(base_url=near.url, trust_env=False, timeout=60) as http,
        ):
            while (health := http.get("/health").json())["status"] == "loading":
                time.sleep(0.01)
            assert health["status"] == "ready", health
            yield http, seen


def call(http: httpx.Client, code: str, **arguments: str) -> httpx.Response:
    body = {"id": "1", "tool": "python", "arguments": {"code": code, **arguments}, "session": "s"}
    return http.post("/v1/call", json={"calls": [body]})


def test_what_the_code_does_is_an_observation_and_what_the_service_does_is_not() -> None:
    with remote(output_bytes=2000) as (http, seen):
        (ok,) = call(http, "print(input())", stdin="hé").json()["results"]
        assert (ok["status"], ok["text"], ok["data"]["return_code"]) == ("ok", "hé\n", 0)
        assert seen[-1]["language"] == "python"
        assert (seen[-1]["run_timeout"], seen[-1]["memory_limit_MB"]) == (1.0, 512)
        (error,) = call(http, "print('before')\n1 / 0").json()["results"]
        assert error["status"] == "error"
        assert error["text"].startswith("before\nTraceback")
        (late,) = call(http, "import time; time.sleep(9)").json()["results"]
        assert (late["status"], late["text"]) == ("timeout", "[stopped: it ran longer than 1 s]")
        (long,) = call(http, "print('x' * 9999)").json()["results"]
        assert long["truncated"] is True
        assert "of 10000 bytes left out" in long["text"]
        (tags,) = call(http, "print('</output>')").json()["results"]
        assert tags["text"] == "‹/output›\n"
        assert call(http, " ").json()["results"][0]["status"] == "invalid"
        for broken in ("BROKEN", "HTTP500", "HTML"):
            answer = call(http, f"# {broken}")
            assert answer.status_code == 500
            assert "results" not in answer.json()
        assert http.get("/health").json()["tools"]["python"]["engine"] == "remote"


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "needs python.url="), ({"url": "http://127.0.0.1:9"}, r"python\.url=http://127\.0\.0\.1:9: no answer")],
)
def test_a_service_that_is_not_there_stops_the_start(settings: dict[str, str], said: str) -> None:
    with pytest.raises(PythonUnavailable, match=said):
        load_tools(["python"], index="", search={}, python={"engine": "remote", **settings}, sql={})


def test_a_service_that_is_something_else_stops_the_start() -> None:
    with RunningServer(FastAPI()) as other, pytest.raises(PythonUnavailable, match="404"):
        load_tools(["python"], index="", search={}, python={"engine": "remote", "url": other.url}, sql={})

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tools.app import create_app
from tools.python.isolation import probe
from tools.python.tool import PythonTool
from tools.testing import RunningServer

WORKS = probe()
LIMITS = {"timeout_s": 2.0, "cpu_s": 5.0, "memory_mb": 256, "disk_mb": 16, "file_mb": 8, "files": 200, "processes": 16}


@dataclass
class Caller:
    """Calls the python tool of a real server over HTTP."""

    url: str
    port: int
    http: httpx.Client

    def run(self, code: str, session: str | None = None, **arguments: str) -> dict[str, Any]:
        call = {"id": "1", "tool": "python", "arguments": {"code": code, **arguments}, "session": session}
        (result,) = self.http.post("/v1/call", json={"calls": [call]}).json()["results"]
        return result

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self.http.post(path, json=body).json()

    def health(self) -> dict[str, Any]:
        return self.http.get("/health").json()


@contextmanager
def serving(**settings: Any) -> Iterator[Caller]:
    app = create_app(lambda: [PythonTool.start(**{"preload": (), "workers": 2, **LIMITS, **settings})])
    with (
        RunningServer(app) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http,
    ):
        while (health := http.get("/health").json())["status"] == "loading":
            time.sleep(0.01)
        assert health["status"] == "ready", health
        yield Caller(server.url, server.port, http)


def skip_unless_works(isolation: str) -> None:
    if WORKS[isolation] is not None:
        pytest.skip(f"this machine has no {isolation}: {WORKS[isolation]}")


@pytest.fixture(scope="session", params=["namespaces", "landlock"])
def python(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """A server for everyone, once with each isolation."""
    skip_unless_works(request.param)
    with serving(isolation=request.param) as caller:
        yield caller


@pytest.fixture
def serve() -> Callable[..., Any]:
    """A server of the test's own: ``with serve(timeout_s=1) as caller``; namespaces unless told otherwise."""

    def start(isolation: str = "namespaces", **settings: Any) -> Any:
        skip_unless_works(isolation)
        return serving(isolation=isolation, **settings)

    return start

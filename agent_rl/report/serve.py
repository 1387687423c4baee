"""`agent-rl report --serve`: the page on loopback, made anew when the files of its runs have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from agent_rl.errors import AgentRLError, UsageError
from agent_rl.report.page import render_report

HOST = "127.0.0.1"
_NAMES = {HOST, "localhost"}


class ReportServer(ThreadingHTTPServer):
    """``/`` is the page, ``/version`` changes with the runs. Raises UsageError where the port is taken."""

    daemon_threads = True

    def __init__(self, run_dirs: Sequence[Path], steps: tuple[int, int] | None, port: int) -> None:
        self.run_dirs, self.steps = run_dirs, steps
        self._lock, self._made, self._html = Lock(), "", ""
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--port {port}: cannot be opened on {HOST} ({error}); give another: --port PORT"
            ) from error

    def version(self) -> str:
        """From names, sizes and times of the files that the page is made of."""
        seen: list[tuple[Any, ...]] = []
        for run in self.run_dirs:
            for path in sorted([run / "config.yaml", run / "metrics.jsonl", *run.glob("eval/*"), *run.glob("traj*/*")]):
                if path.is_file() and not path.name.startswith("."):
                    about = path.stat()
                    seen.append((str(path), about.st_size, about.st_mtime_ns))
        return f"{hash(tuple(seen)):x}"

    def page(self) -> str:
        with self._lock:  # one at a time: a page of a long run takes seconds
            version = self.version()
            if version != self._made:
                self._html, self._made = render_report(self.run_dirs, self.steps, live=version), version
            return self._html


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        # A page of another site could be given our address by its name server; its requests then carry its own name.
        if self.headers.get("Host", "").rpartition(":")[0] not in _NAMES:
            self._answer(403, "text/plain", "this server answers to 127.0.0.1 and localhost only")
        elif self.path == "/version":
            self._answer(200, "text/plain", self.server.version())
        elif self.path == "/":
            try:
                self._answer(200, "text/html", self.server.page())
            except AgentRLError as error:  # e.g. a run whose file is being replaced: the next request may do better
                self._answer(500, "text/plain", str(error))
        else:
            self._answer(404, "text/plain", "only / is here")

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode("utf-8")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line for every poll would bury what matters."""


def serve_report(
    run_dirs: Sequence[Path], steps: tuple[int, int] | None, port: int, log: Callable[[str], None]
) -> None:
    """Serve until interrupted."""
    with ReportServer(run_dirs, steps, port) as server:
        server.page()  # what is wrong with a run is said here, not in the browser
        log(f"report: http://{HOST}:{server.server_address[1]}/ (Ctrl-C ends it)")
        server.serve_forever()

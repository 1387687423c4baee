"""`tools.autostart=true`: a tool server of the run's own, in a child process that never outlives the run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from agent_rl.config.schema import SearchToolConfig, ToolsConfig
from agent_rl.errors import ToolServerUnavailable, UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Loading an encoder and a large index from a cold disk takes minutes.
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.2
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextlib.contextmanager
def autostarted_tool_server(tools: ToolsConfig, log_file: Path, names: Sequence[str] = ("search",)) -> Iterator[None]:
    """Start `python -m tools.server` with the tools ``names`` on the port of ``tools.url``; stop it at the end.

    Enter it from the main thread: on Linux the child is told to end when the thread that started it ends.
    Raises UsageError (not a loopback address, a server is there already) or ToolServerUnavailable (it did not
    come up; the end of its log is in the message).
    """
    host, port = _address(tools.url)
    if _health(tools.url) is not None:
        raise UsageError(
            f"tools.autostart=true, but something answers at {tools.url} already; "
            "leave tools.autostart out to use it, or give another port in tools.url"
        )
    command = serve_command(tools, host, port, names)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(),
            # A session of its own: Ctrl-C in the terminal must reach the trainer alone, which still needs the
            # server to finish its step.
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
    try:
        _wait_until_ready(tools.url, child, log_file)
        yield
    finally:
        _stop(child)


def serve_command(tools: ToolsConfig, host: str, port: int, names: Sequence[str]) -> list[str]:
    """What starts the server, with the settings of the tools that it is to have."""
    command = [sys.executable, "-m", "tools.server", "--host", host, "--port", str(port), "--tools", ",".join(names)]
    if "search" in names:
        command += ["--index", tools.index, *_search_flags(tools.search)]
    for name, settings in (("python", tools.python), ("sql", tools.sql)):
        if name in names:
            command += [f"--{name}", settings.model_dump_json()]
    if tools.token_file is not None:
        command += ["--token-file", tools.token_file]
    return command


def _search_flags(search: SearchToolConfig) -> list[str]:
    """The settings that differ from the server's own, which are the record's."""
    flags: list[str] = []
    for name, value in search.model_dump(exclude_defaults=True).items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [flag, str(value)]
    return flags


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"tools.url={url} is not an address ({error})") from error
    if host not in LOOPBACK or port is None:
        raise UsageError(
            f"tools.autostart=true starts a server on this machine only, but tools.url={url}; "
            "give http://127.0.0.1:<port>"
        )
    return host, port


def _environment() -> dict[str, str]:
    """The parent's environment, with our packages first: the working directory may hold another `tools`."""
    home = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": home + (os.pathsep + rest if rest else ""), "PYTHONSAFEPATH": "1"}


def _end_with_parent() -> Callable[[], None] | None:
    """What the child runs before exec so that it gets SIGTERM when its parent is killed outright (Linux)."""
    if sys.platform != "linux":
        return None
    # Loaded here and not in the child: between fork and exec nothing may take a lock.
    prctl = ctypes.CDLL(None).prctl

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return in_child


def _health(url: str) -> int | None:
    """The status of GET /health, or None where nothing answers."""
    import httpx

    try:
        return httpx.get(f"{url.rstrip('/')}/health", timeout=2.0, trust_env=False).status_code
    except httpx.HTTPError:
        return None


def _wait_until_ready(url: str, child: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while _health(url) != 200:
        if child.poll() is not None:
            reason = f"ended with exit code {child.returncode}"
        elif time.monotonic() > deadline:
            reason = f"was not ready after {START_TIMEOUT_S:.0f} s"
        else:
            time.sleep(POLL_S)
            continue
        tail = "\n  ".join(log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
        raise ToolServerUnavailable(f"the tool server that was started {reason}; the end of {log_file}:\n  {tail}")


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()

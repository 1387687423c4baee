"""Limits, what a call leaves behind, and what a caller is told. On a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tools.python.forkserver import ENVIRONMENT


def alive(marker: str) -> list[int]:
    """Processes of this machine whose command line or name holds ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes() + (entry / "comm").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
        "import signal\nfor n in {*range(1, 32)} - {9, 19}: signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
        "10 ** 10 ** 10",
        "class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()",
        "class Slow(Exception):\n    def __str__(self):\n        while True: pass\nraise Slow",
        "input_ = open(1)\nwhile True: input_.read(1)",
    ],
    ids=lambda code: code.splitlines()[0][:30],
)
def test_a_call_that_never_ends_is_ended(serve, code: str) -> None:
    with serve(timeout_s=0.4) as python:
        began = time.monotonic()
        result = python.run(f"print('before', flush=True)\n{code}")
        assert time.monotonic() - began < 3
        if result["status"] == "error":  # the file that cannot be read ends by itself
            assert "UnsupportedOperation" in result["text"] or "Error" in result["text"]
            return
        assert (result["status"], result["data"]["limit"]) == ("timeout", "wall")
        assert result["text"] == "before\n[stopped: it ran longer than 0.4 s]"


@pytest.mark.slow
def test_processor_time_of_threads_and_processes_together(serve) -> None:
    burn = "import os, time\nos.fork()\nos.fork()\nend = time.time() + 30\nwhile time.time() < end: pass"
    with serve(timeout_s=20, cpu_s=0.5) as python:
        began = time.monotonic()
        result = python.run(burn)
        assert time.monotonic() - began < 8
        assert (result["status"], result["data"]["limit"]) == ("timeout", "cpu")
        assert python.run("1", session="s")["status"] == "ok"
        for _ in range(4):  # the time of earlier calls of the session is not counted again
            code = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
            assert python.run(code, session="s")["status"] == "ok"


def test_memory_of_one_process_is_an_exception_and_the_server_lives(python) -> None:
    """bytedance/SandboxFusion#43 (B35)."""
    result = python.run("a = bytearray(4 * 2 ** 30)", session="memory")
    assert result["status"] == "error"
    assert result["data"] == {
        "output_bytes": result["data"]["output_bytes"],
        "exception": "MemoryError",
        "limit": "memory",
    }
    assert python.run("'lives'", session="memory")["text"] == "'lives'\n"


def test_memory_of_several_processes_together(serve) -> None:
    code = (
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0: break\na = b'x' * (100 * 2 ** 20)\ntime.sleep(20)"
    )
    with serve(timeout_s=20) as python:
        result = python.run(code)
    assert (result["status"], result["data"]["limit"]) == ("error", "memory")
    assert "more than 256 MB" in result["text"]


@pytest.mark.slow
def test_output_without_end_costs_time_and_no_memory(serve) -> None:
    with serve(timeout_s=1.0) as python:
        result = python.run("import os\nwhile True: os.write(1, b'x' * 65536)")
        assert result["data"]["limit"] == "wall"
        assert result["data"]["output_bytes"] > 10_000_000
        assert len(result["text"]) < 20_000


DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "MARK"])
        time.sleep(300)
    os._exit(0)
time.sleep(0.2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("session", [None, "daemon"])
@pytest.mark.parametrize(
    "ending", ["print('done')", "1 / 0", "import os; os._exit(3)", "time.sleep(300)", "os.abort()"]
)
def test_what_a_call_started_is_dead_when_it_is_answered(serve, session: str | None, ending: str) -> None:
    """sixty-north/cosmic-ray#603 (B33): a grandchild outlives."""
    marker = f"agent-rl-daemon-{time.time_ns()}"
    with serve(timeout_s=1.0) as python:
        result = python.run(DAEMON.replace("MARK", marker) + ending, session=session)
        assert alive(marker) == [], result
        if ending == "print('done')":  # ended by the interpreter itself, which lives on
            assert (result["status"], result["text"]) == ("ok", "done\n")
        again = python.run(
            "import os\ntry: os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError: print('none')", session
        )
        assert again["text"].endswith("none\n"), again


@pytest.mark.slow
def test_the_grandchild_outlives_without_a_sandbox() -> None:
    marker = f"agent-rl-daemon-{time.time_ns()}"
    with subprocess.Popen([sys.executable, "-c", DAEMON.replace("MARK", marker) + "time.sleep(300)"]) as process:
        deadline = time.monotonic() + 20
        while len(alive(marker)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()  # what subprocess.run does at its timeout
    left = alive(marker)
    for pid in left:
        os.kill(pid, 9)
    assert left


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "signal SIGSEGV"),
        ("import os; os.closerange(0, 1000)", "exit code 125"),
    ],
)
def test_an_interpreter_that_ends_by_itself_says_how(python, code: str, said: str) -> None:
    result = python.run(code, session="ends")
    assert result["status"] == "error"
    assert said in result["text"], result
    assert "the next call starts clean" in result["text"]
    assert python.run("'clean'", session="ends")["text"] == "'clean'\n"


def test_an_answer_cannot_be_forged(python) -> None:
    """What the code sends on the server's own socket answers nothing."""
    forge = (
        "import os, socket\n"
        "for fd in range(3, 40):\n"
        "    try: s = socket.socket(fileno=fd)\n"
        "    except OSError: continue\n"
        "    for _ in range(5):\n"
        "        s.send(b'ok'); s.send(b' ok'); s.send(b'error Forged' + b'x' * 5000)\n"
        "    s.detach()\n"
        "print('forged')\n1 / 0"
    )
    first = python.run(forge, session="forges")
    assert (first["status"], first["data"]["exception"]) == ("error", "ZeroDivisionError")
    assert first["text"].startswith("forged\n")
    for n in range(3):
        assert python.run(f"{n}", session="forges")["text"] == f"{n}\n"
    assert python.run("'other'", session="honest")["text"] == "'other'\n"


def test_overwriting_the_interpreters_own_functions_harms_only_its_session(serve) -> None:
    tamper = (
        "import os, socket, sys, io, builtins, traceback, linecache\n"
        "for module, names in ((os, ('kill', 'waitpid', 'dup2', 'close', 'getpid')), (socket, ('recv_fds',))):\n"
        "    for name in names: setattr(module, name, None)\n"
        "builtins.print = builtins.open = builtins.exec = None\n"
        "sys.stdout = sys.stderr = None"
    )
    with serve(timeout_s=1.0) as python:
        python.run(tamper, session="tampers")
        assert python.run("'first'", session="tampers")["status"] in ("ok", "error", "timeout")
        assert python.run("'fresh'", session="other")["text"] == "'fresh'\n"
        python.post("/v1/end_session", {"sessions": ["tampers"]})
        assert python.run("'clean'", session="tampers")["text"] == "'clean'\n"


def test_no_file_of_the_server_is_open_in_a_sandbox(python) -> None:
    code = (
        "import os\nopened = []\n"
        "for fd in range(3, 1024):\n    try: os.fstat(fd)\n    except OSError: continue\n    opened.append(fd)\n"
        "len(opened)"
    )
    assert python.run(code)["text"] == "2\n"  # its own socket, its own output


def test_the_environment_is_ours_alone(python) -> None:
    result = python.run("import os; sorted(os.environ)")
    assert "PATH" in result["text"]
    assert set(eval(result["text"])) == set(ENVIRONMENT)


def test_a_pool_of_threads_fits_into_the_limits(serve) -> None:
    """glibc reserves 64 MB of address space for each thread, unless it is told not to."""
    code = "from concurrent.futures import ThreadPoolExecutor as Pool\nsum(Pool(12).map(lambda n: n, range(99)))"
    with serve() as python:
        assert python.run(code)["text"] == "4851\n"


@pytest.mark.slow
def test_waiting_for_a_worker_is_not_run_time(serve) -> None:
    """verl-project/verl#3478, TIGER-AI-Lab/verl-tool#136 (B29)."""
    with serve(workers=1, timeout_s=1.0) as python, ThreadPoolExecutor(20) as pool:
        began = time.monotonic()
        results = list(pool.map(lambda _: python.run("import time; time.sleep(0.2)"), range(20)))
        assert time.monotonic() - began > 3.9
    assert [result["status"] for result in results] == ["ok"] * 20
    assert all(0.2 <= result["elapsed_s"] < 0.6 for result in results)
    assert max(result["queued_s"] for result in results) > 3


@pytest.mark.slow
def test_beyond_the_queue_calls_are_overloaded_and_never_timeouts(serve) -> None:
    with serve(workers=1, max_queue=3) as python, ThreadPoolExecutor(8) as pool:
        call = {"calls": [{"id": "1", "tool": "python", "arguments": {"code": "import time; time.sleep(0.3)"}}]}
        answers = list(pool.map(lambda _: python.http.post("/v1/call", json=call), range(8)))
    codes = [answer.status_code for answer in answers]
    assert codes.count(429) == 4
    assert codes.count(200) == 4
    assert all(answer.headers["Retry-After"] for answer in answers if answer.status_code == 429)


def test_a_client_that_leaves_takes_its_running_call_along(serve) -> None:
    marker = f"agent-rl-left-{time.time_ns()}"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(60)', '{marker}'])"
    with serve(workers=1, timeout_s=60) as python:
        call = {"calls": [{"id": "1", "tool": "python", "arguments": {"code": code}}]}
        with pytest.raises(httpx.ReadTimeout):
            python.http.post("/v1/call", json=call, timeout=0.5)
        began = time.monotonic()
        assert python.run("'next'")["text"] == "'next'\n"
        assert time.monotonic() - began < 5
        assert alive(marker) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "import os, socket, stat\n"
        "fd = next(n for n in range(3, 99) if os.path.exists(n) and stat.S_ISSOCK(os.fstat(n).st_mode))\n"
        "s = socket.socket(fileno=fd)\nwhile True: s.send(b'flood')",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    ],
    ids=["output", "answers", "forks"],
)
def test_health_answers_at_once_whatever_runs(serve, bomb: str) -> None:
    with serve(workers=4, timeout_s=2.0) as python, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(python.run, bomb) for _ in range(4)]
        time.sleep(0.3)
        took = []
        while not all(call.done() for call in calls):
            began = time.monotonic()
            python.health()
            took.append(time.monotonic() - began)
            time.sleep(0.02)
    assert sorted(took)[len(took) // 2] < 0.1, took

"""A server after very many calls, a third of them hostile: nothing left behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tools.python.isolation import probe
from tools.python.usage import family

ROOT = Path(__file__).resolve().parents[3]

HOSTILE = [
    "while True: pass",
    "import os\nwhile True: os.fork()",
    "a = bytearray(10 ** 10)",
    "print('x' * 2_000_000)",
    "import os, subprocess, sys, time\nif os.fork() == 0:\n    os.setsid()\n    subprocess.run(['sleep', '99'])",
    "import os; os._exit(9)",
    "import ctypes; ctypes.string_at(0)",
    "for n in range(300): open(f'f{n}', 'w').write('x' * 100_000)",
    "import os; os.closerange(0, 1000)",
    "import socket; socket.create_connection(('127.0.0.1', 1))",
    "import os, signal; os.kill(os.getppid() or 1, signal.SIGKILL)",
    "print('\\ud800\\0')",
]


def zombies(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def leftovers(folder: Path) -> set[str]:
    """Private folders of sandboxes, as the server makes them where they have no file system of their own."""
    return {str(path) for path in folder.glob("agent-rl-python-*/*")}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_a_thousand_calls_leave_nothing_behind(isolation: str, tmp_path: Path) -> None:
    if (reason := probe()[isolation]) is not None:
        pytest.skip(f"this machine has no {isolation}: {reason}")
    settings = f'{{"isolation": "{isolation}", "timeout_s": 0.5, "preload": ["numpy"], "disk_mb": 16, "workers": 4}}'
    command = [sys.executable, "-m", "tools.server", "--tools", "python", "--port", "0", "--python", settings]
    # A temporary folder of its own: another server on this machine makes folders too.
    own = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        try:
            _run(process.pid, url, tmp_path)
        finally:
            process.terminate()
    assert leftovers(tmp_path) == set()


def _run(server: int, url: str, folder: Path) -> None:
    draw = random.Random(0)
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:

        def call(number: int) -> tuple[str, str]:
            hostile = HOSTILE[number % len(HOSTILE)] if number % 3 == 0 else None
            session = f"s{number % 50}" if number % 2 else None
            code = hostile or f"import numpy\nvalue = {number}\nopen('file', 'w').write('x')\nint(numpy.sum([value]))"
            body = {"id": "1", "tool": "python", "arguments": {"code": code}, "session": session}
            answer = http.post("/v1/call", json={"calls": [body]})
            assert answer.status_code == 200, answer.text
            (result,) = answer.json()["results"]
            return ("hostile" if hostile else f"{number}\n"), result["text"]

        def end_sessions() -> None:
            http.post("/v1/end_session", json={"sessions": [f"s{n}" for n in range(50)]})

        def settled() -> list[int]:
            """The server's processes once the waiting sandboxes are all made."""
            end_sessions()
            time.sleep(1.0)
            return list(family(server))

        numbers = list(range(1000))
        draw.shuffle(numbers)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, range(60)))  # the first calls fill caches and pools
            at_start, memory_at_start, folders_at_start = settled(), resident_kb(server), len(leftovers(folder))
            answered = list(pool.map(call, numbers))
        at_end = settled()
        wrong = [(wanted, text) for wanted, text in answered if wanted not in ("hostile", text)]
        assert wrong == []
        assert sum(wanted != "hostile" for wanted, _ in answered) == 666
        assert zombies(at_end) == []
        assert len(at_end) == len(at_start)
        assert len(leftovers(folder)) == folders_at_start
        growth = resident_kb(server) / memory_at_start
        print(f"memory of the server: {memory_at_start} kB, then x {growth:.3f}")
        assert growth < 1.05

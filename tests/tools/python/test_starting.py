"""Starting the python tool where isolation is weaker or absent: it says what is missing, or does not start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tools.python import seccomp
from tools.python.isolation import PythonUnavailable, probe, start_isolated
from tools.python.limits import SandboxLimits
from tools.python.namespaces import hidden_path
from tools.python.tool import PythonTool
from tools.python.usage import family

from .conftest import skip_unless_works

ROOT = Path(__file__).resolve().parents[3]

# A process that may make no user namespace, as in many containers: the kernel's own switch, in a namespace of ours.
NO_NAMESPACES = """
import os, sys
from tools.python import kernel
uid, gid = os.geteuid(), os.getegid()
kernel.unshare(kernel.CLONE_NEWUSER, "user")
for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    open(f"/proc/self/{name}", "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""
# A kernel without Landlock: the call answers as an old kernel does.
NO_LANDLOCK = """
from tools.python import seccomp
kernel.set_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
seccomp.Filter([(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7FFF0000)]).install()
"""
SERVE = "from tools.server import main; sys.exit(main(sys.argv[1:]))"


def command(*switches: str, python: str = '{"preload": [], "timeout_s": 5}') -> list[str]:
    code = "import sys\n" + "".join(switches) + SERVE
    return [sys.executable, "-c", code, "--tools", "python", "--port", "0", "--python", python]


@contextmanager
def server(*switches: str, **settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its one line."""
    with subprocess.Popen(
        command(*switches, **settings), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready: "), process.communicate()
            yield process, line
        finally:
            process.terminate()
            process.communicate(timeout=20)


def health(line: str) -> dict:
    return httpx.get(f"{line.split()[1]}/health", trust_env=False).json()["tools"]["python"]


def call(line: str, code: str, session: str | None = None) -> dict:
    body = {"calls": [{"id": "1", "tool": "python", "arguments": {"code": code}, "session": session}]}
    answer = httpx.post(f"{line.split()[1]}/v1/call", json=body, trust_env=False, timeout=30)
    return answer.json()["results"][0]


@pytest.fixture
def can_switch_off() -> None:
    done = subprocess.run([sys.executable, "-c", NO_NAMESPACES], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"namespaces cannot be switched off for a test here: {done.stderr.splitlines()[-1:]}")


@pytest.mark.slow
@pytest.mark.usefixtures("can_switch_off")
def test_without_namespaces_the_line_says_what_is_used_and_why() -> None:
    with server(NO_NAMESPACES) as (_, line):
        assert "isolated by landlock" in line
        assert "namespaces is not to be had: unshare(user, mount" in line
        assert health(line)["isolation"] == "landlock"
        assert "unshare" in health(line)["refused"]["namespaces"]
        assert call(line, "6 * 7")["text"] == "42\n"
        assert call(line, "open('/etc/passwd')")["data"]["exception"] == "PermissionError"


@pytest.mark.slow
@pytest.mark.usefixtures("can_switch_off")
@pytest.mark.parametrize("wanted", ["auto", "namespaces", "landlock"])
def test_without_any_isolation_it_does_not_start_and_says_how_to(wanted: str) -> None:
    python = f'{{"preload": [], "isolation": "{wanted}"}}'
    done = subprocess.run(
        command(NO_NAMESPACES, NO_LANDLOCK, python=python), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"cannot isolate the model's code (python.isolation={wanted})" in done.stderr
    if wanted != "landlock":
        assert "namespaces: unshare(user, mount, pid, net, ipc, uts, cgroup): No space left on device" in done.stderr
        assert "sysctl -w user.max_user_namespaces=15000" in done.stderr
    if wanted != "namespaces":
        assert "landlock: Landlock is not to be had: Function not implemented; Linux 6.2" in done.stderr
    assert "python.allow_unsafe=true" in done.stderr
    assert "python.engine=remote" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("can_switch_off")
def test_only_allow_unsafe_goes_without_and_every_health_answer_shows_it() -> None:
    with server(NO_NAMESPACES, NO_LANDLOCK, python='{"preload": [], "allow_unsafe": true}') as (_, line):
        assert "NOT ISOLATED" in line
        assert (health(line)["isolation"], health(line)["allow_unsafe"]) == ("none", True)
        assert set(health(line)["refused"]) == {"namespaces", "landlock"}
        assert call(line, "import os; os.path.exists('/etc/passwd')")["text"] == "True\n"


def test_allow_unsafe_takes_the_isolation_that_there_is(serve) -> None:
    with serve(isolation="namespaces", allow_unsafe=True) as python:
        assert python.health()["tools"]["python"]["isolation"] == "namespaces"
        assert python.health()["tools"]["python"]["allow_unsafe"] is True


def test_no_program_is_needed_on_the_machine(monkeypatch: pytest.MonkeyPatch, serve) -> None:
    """Not bubblewrap, nor any other: PATH is empty."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with serve() as python:
        assert python.run("6 * 7")["text"] == "42\n"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"isolation": "none"}, "needs python.allow_unsafe=true"),
        ({"preload": ("no_such_module",)}, "python.preload=no_such_module: ModuleNotFoundError"),
    ],
)
def test_what_cannot_start_names_the_setting(settings: dict, said: str) -> None:
    with pytest.raises(PythonUnavailable, match=said) as caught:
        PythonTool.start(**settings)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["timeout_s", "memory_mb", "output_bytes"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be above 0"):
        PythonTool.start(**{name: 0})


def test_an_unknown_architecture_has_no_filter_and_so_no_isolation() -> None:
    with pytest.raises(OSError, match="no system-call table for riscv64"):
        seccomp.program(own_pid=None, machine="riscv64")
    assert seccomp.program(own_pid=None, machine="aarch64") != seccomp.program(own_pid=None, machine="x86_64")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_a_server_that_is_killed_leaves_nothing(isolation: str) -> None:
    skip_unless_works(isolation)
    marker = f"agent-rl-orphan-{time.time_ns()}"
    with server(python=f'{{"preload": [], "isolation": "{isolation}", "timeout_s": 60}}') as (process, line):
        call(line, f"open('{marker}', 'w').close()", "s")
        folders = [path.parents[1] for path in Path(tempfile.gettempdir()).glob(f"agent-rl-python-*/*/{marker}")]
        assert len(folders) == (isolation == "landlock")
        children = [pid for pid in family(process.pid) if pid != process.pid]
        assert len(children) >= 3  # the warm interpreter, a waiting sandbox, the session's
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 5
        while any(alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [pid for pid in children if alive(pid)] == []
        assert [folder for folder in folders if folder.exists()] == []


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


UNPRIVILEGED = """
import asyncio, sys
from tools.python.forkserver import ForkServer
from tools.python.limits import SandboxLimits
async def main():
    for isolation in ("namespaces", "landlock"):
        server = ForkServer(isolation, SandboxLimits(timeout_s=5), ())
        for code in ("open('/etc/passwd')", "import socket; socket.socket()", "6 * 7"):
            outcome = await (await server.spawn()).run(code, keep=False)
            print(isolation, outcome.exception, outcome.output.text().splitlines()[-1:])
        server.close()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; the other tests ran unprivileged")
def test_an_unprivileged_user_is_isolated_too(serve) -> None:
    def as_nobody(interpreter: str, code: str, cwd: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [interpreter, "-c", code], cwd=cwd, user=65534, group=65534, extra_groups=[], capture_output=True, text=True
        )

    with serve(), serve("landlock"):  # skips where this machine has them not
        pass
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(ROOT / "tools", Path(folder, "tools"))
        for interpreter in (sys.executable, "/usr/bin/python3"):
            try:
                if as_nobody(interpreter, "import sys; sys.exit(sys.version_info < (3, 11))", "/").returncode == 0:
                    break
            except OSError:
                continue
        else:
            pytest.skip("nobody can run any Python 3.11 here")
        done = as_nobody(interpreter, UNPRIVILEGED, folder)
    assert done.stdout.splitlines() == [
        "namespaces FileNotFoundError [\"FileNotFoundError: [Errno 2] No such file or directory: '/etc/passwd'\"]",
        "namespaces PermissionError ['PermissionError: [Errno 1] Operation not permitted']",
        "namespaces None ['42']",
        "landlock PermissionError [\"PermissionError: [Errno 13] Permission denied: '/etc/passwd'\"]",
        "landlock PermissionError ['PermissionError: [Errno 1] Operation not permitted']",
        "landlock None ['42']",
    ], done.stderr


def test_the_probe_and_the_choice_agree() -> None:
    found = probe()
    strongest = next((name for name, reason in found.items() if reason is None), None)
    if strongest is None:
        pytest.skip("nothing isolates here")
    chosen = start_isolated("auto", SandboxLimits(), (), allow_unsafe=False)
    chosen.server.close()
    assert chosen.name == strongest


def test_an_interpreter_that_the_sandboxs_own_folder_would_hide_is_seen() -> None:
    """An environment below /tmp: the sandbox has a /tmp of its own, so its libraries would be gone."""
    assert hidden_path(["/usr", "/tmp/somewhere/.venv"]) == "/tmp/somewhere/.venv"
    assert hidden_path(["/usr", "/tmpfiles", "/home/me/.venv"]) is None

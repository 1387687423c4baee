"""One attack per property, sent to a real server as any caller would. An attack that succeeds calls ``breach()``.

Each is also run in a bare subprocess, where it must succeed: so it is known that the test would notice.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT_ONLY = {"read_shadow", "become_root", "chroot", "raise_priority", "write_etc"}

ATTACKS = {
    "read_shadow": "breach(open('/etc/shadow').read()[:0])",
    "read_passwd": "breach(open('/etc/passwd').read()[:0])",
    "read_file_of_the_server": "breach(open(VICTIM_FILE).read()[:0])",
    "see_the_environment": "import os\nif 'AGENT_RL_SECRET' in os.environ: breach()",
    "read_the_servers_environment": "breach(open(f'/proc/{PID}/environ', 'rb').read()[:0])",
    "read_the_servers_memory": "breach(open(f'/proc/{PID}/mem', 'rb').fileno())",
    "walk_proc": (
        "import os\nfor name in os.listdir('/proc'):\n"
        "    if name.isdigit() and int(name) != os.getpid(): breach(); break"
    ),
    "leave_by_proc_root": "for pid in ('self', str(PID)): breach(open(f'/proc/{pid}/root/etc/passwd').read()[:0])",
    "follow_a_symlink": "import os\nos.symlink('/etc/passwd', 'link')\nbreach(open('link').read()[:0])",
    "climb_with_dots": "breach(open('../' * 40 + 'etc/passwd').read()[:0])",
    "hard_link": "import os\nos.link(VICTIM_FILE, 'link')\nbreach(open('link').read()[:0])",
    "write_outside": "open(VICTIM_FILE, 'a').write('x')\nbreach()",
    "write_beside": "open(VICTIM_FILE + '.new', 'w').write('x')\nbreach()",
    "write_etc": "import os\nopen('/etc/agent-rl-probe', 'w').close()\nos.remove('/etc/agent-rl-probe')\nbreach()",
    "write_into_the_interpreter": "import os, sys\npath = os.path.join(sys.prefix, 'agent-rl-probe')\n"
    "open(path, 'w').close()\nos.remove(path)\nbreach()",
    "delete_outside": "import os\nopen(VICTIM_FILE + '.x', 'w').close()\nos.remove(VICTIM_FILE + '.x')\nbreach()",
    "change_mode_outside": "import os\nos.chmod(VICTIM_FILE, 0o600)\nbreach()",
    "truncate_outside": "import os\nos.truncate(VICTIM_FILE, 3)\nbreach()",
    "connect_to_the_tool_server": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)\nbreach()",
    "call_the_tool_server": "import urllib.request\n"
    "breach(urllib.request.urlopen(f'http://127.0.0.1:{PORT}/health').status)",
    "open_an_internet_socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nbreach()",
    "listen": "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\nbreach()",
    "reach_an_abstract_socket": "import socket\ns = socket.socket(socket.AF_UNIX)\n"
    "s.connect('\\0' + ABSTRACT)\nbreach()",
    "abstract_socket_by_a_socketpair": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "a.bind('\\0agent-rl-test-mine')\nbreach()",
    "ask_the_kernel_by_netlink": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\nbreach()",
    "signal_the_server": "import os\nos.kill(PID, 0)\nbreach()",
    "signal_the_parent": "import os\nparent = os.getppid()\nif parent > 1:\n    os.kill(parent, 0)\n    breach()",
    "signal_by_file_owner": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, PID)\nbreach()",
    "ptrace": "import ctypes\nif ctypes.CDLL(None).ptrace(0x4206, PID, 0, 0) == 0: breach()",
    "read_by_process_vm": "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "libc.process_vm_readv(PID, None, 0, None, 0, 0) == 0 and breach()",
    "pidfd": "import os\nos.pidfd_open(PID)\nbreach()",
    "ctypes_system": "import ctypes, os\nctypes.CDLL(None).system(b'cat /etc/passwd > out')\n"
    "if os.path.exists('out') and open('out').read(): breach()",
    "run_a_program_on_the_host": "import subprocess\n"
    "if subprocess.run(['cat', '/etc/passwd'], capture_output=True).stdout: breach()",
    "become_root": "import os\nos.setuid(0)\nos.setgroups([1])\nbreach()",
    "chroot": "import os\nos.makedirs('jail', exist_ok=True)\nos.chroot('jail')\nbreach()",
    "new_user_namespace": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: breach()",
    "raise_limits": "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, r.getrlimit(r.RLIMIT_NOFILE))\nbreach()",
    "raise_priority": "import os\nos.setpriority(os.PRIO_PROCESS, 0, -1)\nbreach()",
    "memory_bomb": "a = bytearray(300 * 2 ** 20)\nbreach()",
    "memory_file_bomb": "import os\nos.memfd_create('x')\nbreach()",
    "shared_memory_bomb": "import ctypes\nif ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0: breach()",
    "fork_bomb": (
        "import os, time\nchildren = 0\n"
        "for _ in range(60):\n    pid = os.fork()\n    if pid == 0:\n        time.sleep(0.5)\n        os._exit(0)\n"
        "    children += 1\nbreach()"
    ),
    "thread_bomb": (
        "import threading, time\n"
        "for _ in range(60): threading.Thread(target=time.sleep, args=(0.3,), daemon=True).start()\nbreach()"
    ),
    "fill_the_disk": (
        "chunk = b'x' * 2 ** 20\nfor n in range(40):\n"
        "    with open(f'file{n % 10}', 'ab') as file: file.write(chunk)\n"
        "import time; time.sleep(0.5); breach()"
    ),
    "one_large_file": "with open('file', 'wb') as file:\n    file.truncate(2 ** 26)\nbreach()",
    "many_files": ("import time\nfor n in range(1000): open(f'f{n}', 'w').close()\ntime.sleep(0.5)\nbreach()"),
}


@dataclass
class Victim:
    """What is attacked: a process, a file and a socket of the user that runs the server."""

    pid: int
    file: Path
    abstract: str

    def preamble(self, port: int) -> str:
        values = {"PID": self.pid, "PORT": port, "VICTIM_FILE": str(self.file), "ABSTRACT": self.abstract}
        # the word is put together there, since a traceback shows the lines of the code
        code = "def breach(*_): print('BR' + 'EACH')\n"
        return code + "".join(f"{name} = {value!r}\n" for name, value in values.items())


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    file = tmp_path_factory.mktemp("victim") / "diary"
    file.write_text("secret")
    abstract = f"agent-rl-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{abstract}")
        listening.listen()
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        yield Victim(process.pid, file, abstract)
        assert process.poll() is None, "an attack ended the victim"
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def secret_environment() -> Iterator[None]:
    os.environ["AGENT_RL_SECRET"] = "s3cret"
    yield
    del os.environ["AGENT_RL_SECRET"]


@pytest.mark.usefixtures("secret_environment")
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_fails(python, victim: Victim, name: str) -> None:
    before = victim.file.read_bytes(), victim.file.stat().st_mode
    result = python.run(victim.preamble(python.port) + ATTACKS[name])
    assert "BREACH" not in result["text"], result
    assert result["status"] in ("ok", "error"), result
    assert (victim.file.read_bytes(), victim.file.stat().st_mode) == before
    assert sorted(path.name for path in victim.file.parent.iterdir()) == ["diary"]
    assert python.run("6 * 7")["text"] == "42\n"


@pytest.mark.slow
@pytest.mark.usefixtures("secret_environment")
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_bites_without_a_sandbox(name: str, victim: Victim, tmp_path: Path) -> None:
    if name in ROOT_ONLY and os.geteuid() != 0:
        pytest.skip("only root could do that unprotected")
    copy = Victim(victim.pid, tmp_path / "diary", victim.abstract)
    copy.file.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if name == "call_the_tool_server":
            pytest.skip("shown by the plain connection")
        code = copy.preamble(listening.getsockname()[1]) + ATTACKS[name]
        work = tmp_path / "work"
        work.mkdir()
        done = subprocess.run([sys.executable, "-c", code], cwd=work, capture_output=True, text=True, timeout=60)
    assert "BREACH" in done.stdout, done.stderr

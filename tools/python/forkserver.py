"""The server's end of the zygote: starting it, refusing where isolation cannot be had, asking it for sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tools.python.limits import SandboxLimits
from tools.python.sandbox import Exit, Sandbox, SandboxBroken
from tools.python.usage import host_pid, usage
from tools.python.zygote import MESSAGE_BYTES

IsolationName = Literal["namespaces", "landlock", "none"]

# Importing large libraries from a cold disk takes long.
START_TIMEOUT_S = 120.0
_HOME = str(Path(__file__).resolve().parents[2])
# All that sandboxed code finds in its environment. One thread a library: they are forked, and share few cores.
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc would reserve 64 MB of address space for each thread, out of memory_mb
    "MALLOC_ARENA_MAX": "1",
}


class IsolationUnavailable(Exception):
    """This machine cannot isolate as asked; the text is the kernel's own reason."""


class ForkServer:
    """A warm interpreter (``preload`` imported) and the sandboxes forked from it.

    Starting is synchronous and proves itself with one sandbox; afterwards it belongs to the event loop that first
    spawns. Raises IsolationUnavailable.
    """

    def __init__(self, isolation: IsolationName, limits: SandboxLimits, preload: Sequence[str]) -> None:
        self.limits = limits
        self._folder: Path | None = None
        if isolation != "namespaces":  # there every sandbox has a file system of its own
            self._folder = Path(tempfile.mkdtemp(prefix="agent-rl-python-"))
        self._numbers = itertools.count()
        self._spawned: dict[int, asyncio.Future[int]] = {}
        self._exited: dict[int, asyncio.Future[Exit]] = {}
        self._base_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = _start(theirs)
        finally:
            theirs.close()
        try:
            self._channel.settimeout(START_TIMEOUT_S)
            settings = {
                "isolation": isolation,
                "limits": dataclasses.asdict(limits),
                "preload": list(preload),
                "folder": None if self._folder is None else str(self._folder),
            }
            self._channel.send(json.dumps(settings).encode())
            answer = self._receive()
            if "ready" not in answer:
                raise IsolationUnavailable(answer.get("failed", "the interpreter died"))
            self._prove()
        except BaseException:
            self.close()
            raise

    async def spawn(self) -> Sandbox:
        """A fresh sandbox that is shut in and waits for code. Raises SandboxBroken."""
        self._attach()
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        folder = self._new_folder(number)
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, their_output = os.pipe()
        spawned, exited = loop.create_future(), loop.create_future()
        self._spawned[number], self._exited[number] = spawned, exited
        try:
            self._order(number, folder, their_control.fileno(), their_output)
            pidfd = await asyncio.shield(spawned)
        except BaseException:
            control.close()
            os.close(output)
            spawned.add_done_callback(_close_result)
            raise
        finally:
            their_control.close()
            os.close(their_output)
        sandbox = Sandbox(self.limits, control, output, pidfd, exited, folder, self._base_bytes)
        await sandbox.ready()
        return sandbox

    def close(self) -> None:
        """End the interpreter and with it every sandbox; returns when they are gone."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._channel)
        self._channel.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _prove(self) -> None:
        """Make one sandbox and end it: what cannot be isolated is to be known now."""
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = next(self._numbers)
        folder = self._new_folder(number)
        with control, their_control, open(os.devnull, "wb") as nowhere:
            self._order(number, folder, their_control.fileno(), nowhere.fileno())
            answer, pidfd = self._receive_with_fd()
            if pidfd is None:
                raise IsolationUnavailable(answer.get("reason", "the interpreter died"))
            their_control.close()
            control.settimeout(START_TIMEOUT_S)
            said = control.recv(MESSAGE_BYTES)
            if (pid := host_pid(pidfd)) is not None:
                self._base_bytes = sum(usage(pid).private_bytes)
            os.close(pidfd)
        if said != b"ready":
            raise IsolationUnavailable(said.decode("utf-8", "replace").removeprefix("failed ") or "a sandbox died")
        if self._receive().get("exited") != number:
            raise IsolationUnavailable("a sandbox did not end")
        if folder is not None:
            shutil.rmtree(folder)

    def _order(self, number: int, folder: Path | None, control: int, output: int) -> None:
        order = {"number": number, "folder": None if folder is None else str(folder)}
        try:
            socket.send_fds(self._channel, [json.dumps(order).encode()], [control, output])
        except OSError as error:
            raise SandboxBroken(f"the warm interpreter is gone: {error}") from error

    def _new_folder(self, number: int) -> Path | None:
        if self._folder is None:
            return None
        folder = self._folder / str(number)
        folder.mkdir(mode=0o700)
        return folder

    def _receive(self) -> dict[str, Any]:
        message = self._channel.recv(MESSAGE_BYTES)
        answer: dict[str, Any] = json.loads(message) if message else {}
        return answer

    def _receive_with_fd(self) -> tuple[dict[str, Any], int | None]:
        message, files, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 1)
        return json.loads(message) if message else {}, files[0] if files else None

    def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError("a ForkServer belongs to one event loop")
            self._loop = loop
            self._channel.setblocking(False)
            loop.add_reader(self._channel, self._heard)

    def _heard(self) -> None:
        try:
            answer, pidfd = self._receive_with_fd()
        except BlockingIOError:
            return
        except OSError:
            answer, pidfd = {}, None
        if "spawned" in answer and pidfd is not None:
            os.set_inheritable(pidfd, False)
            self._spawned.pop(answer["spawned"]).set_result(pidfd)
        elif "refused" in answer:
            self._exited.pop(answer["refused"]).cancel()
            broken = SandboxBroken(f"a sandbox could not be made: {answer['reason']}")
            self._spawned.pop(answer["refused"]).set_exception(broken)
        elif "exited" in answer:
            exited = self._exited.pop(answer["exited"])
            exited.set_result(Exit(answer["status"], answer["cpu_s"]))
        elif not answer:
            self._died()

    def _died(self) -> None:
        """The zygote is gone, and with it all its sandboxes."""
        assert self._loop is not None
        self._loop.remove_reader(self._channel)
        for spawned in self._spawned.values():
            spawned.set_exception(SandboxBroken("the warm interpreter is gone"))
        for exited in self._exited.values():
            if not exited.done():
                exited.set_exception(SandboxBroken("the warm interpreter is gone, and its sandboxes with it"))
                exited.exception()  # nobody may be waiting for it
        self._spawned.clear()
        self._exited.clear()


def _close_result(spawned: asyncio.Future[int]) -> None:
    """Of a sandbox that nobody waits for any more: without its control socket it ends by itself."""
    if not spawned.cancelled() and spawned.exception() is None:
        os.close(spawned.result())


def _start(channel: socket.socket) -> subprocess.Popen[bytes]:
    # -P and -s: nothing is imported from the working directory or the user's own site-packages
    code = (
        f"import sys; sys.path.insert(0, {_HOME!r}); from tools.python.zygote import main; "
        f"sys.path.remove({_HOME!r}); main({channel.fileno()})"
    )
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        env=ENVIRONMENT,
        cwd="/",
        start_new_session=True,  # Ctrl-C in a terminal is for the server, which ends this in its own order
    )

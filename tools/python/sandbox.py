"""One sandbox, seen from the server: giving it code, watching it, ending it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.python.driver import GO
from tools.python.limits import MIB, SandboxLimits
from tools.python.output import Output
from tools.python.usage import Usage, children, folder_size, host_pid, usage

Cause = Literal["wall", "cpu", "memory", "disk", "processes", "died"]

WATCH_S = 0.1
START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
DYING_S = 0.5
_CHUNK = 65536


class SandboxBroken(Exception):
    """The sandbox could not be made, or could not be ended: the machine's fault, never the code's."""


@dataclass(frozen=True, slots=True)
class Exit:
    """``status``: exit code, or minus the signal."""

    status: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """``exception``: the name of what the code raised. ``ended``: why the sandbox had to end; None: it did not."""

    output: Output
    run_s: float
    exception: str | None = None
    ended: Cause | None = None
    exit: Exit | None = None


class Sandbox:
    """Made by ``ForkServer.spawn``. Belongs to the event loop that it was made in."""

    def __init__(
        self,
        limits: SandboxLimits,
        control: socket.socket,
        output: int,
        pidfd: int,
        exited: asyncio.Future[Exit],
        folder: Path | None,
        base_bytes: int,
    ) -> None:
        self.limits, self.exited = limits, exited
        self._control, self._output, self._pidfd, self._folder = control, output, pidfd, folder
        self._loop = asyncio.get_running_loop()
        self._base_bytes = base_bytes  # private memory of the warm interpreter, before any code
        self._stopped = self._closed = False
        self._calls = 0
        self._before = Usage()
        os.set_blocking(output, False)
        control.setblocking(False)

    async def ready(self) -> None:
        """Wait until the isolation stands. Raises SandboxBroken."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                said = await self._loop.sock_recv(self._control, 4096)
        except (OSError, TimeoutError) as error:
            said = repr(error).encode()
        if said != b"ready":
            await self.end()
            raise SandboxBroken(f"a sandbox could not be made: {said.decode('utf-8', 'replace') or 'it died'}")

    async def run(self, code: str, stdin: str = "", *, keep: bool) -> Outcome:
        """Run one call within the limits. Unless it is to be kept, the sandbox has ended when this returns.

        Cancelling ends the sandbox. Raises SandboxBroken.
        """
        began = self._loop.time()
        output = Output(self.limits.output_bytes)
        try:
            answer, cause = await self._call(code, stdin, output)
            run_s = self._loop.time() - began
            if keep and cause is None:
                cause = self._pause()
            if cause == "died":  # its end of the socket closes a moment before it has ended: let it, to see how
                await asyncio.wait((self.exited,), timeout=DYING_S)
            if cause is not None or not keep:
                self._drain(output)  # before the end, which a writer that waits for room would never see otherwise
                await self.kill()
            self._drain(output)
            if self.exited.done():
                await self.end()
        except BaseException:
            await asyncio.shield(self.end())
            raise
        exception = answer.removeprefix(b"error ").decode("utf-8", "replace") if answer.startswith(b"error ") else None
        return Outcome(output, run_s, exception, cause, self.exited.result() if self.exited.done() else None)

    async def end(self) -> None:
        """Kill, and free what the sandbox held; not amid a call. Fine to call twice. Raises SandboxBroken."""
        await self.kill()
        if self._closed:
            return
        self._closed = True
        self._control.close()
        os.close(self._output)
        os.close(self._pidfd)
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def kill(self) -> None:
        """End everything in the sandbox and wait until it is reaped; fine amid a call, which then returns."""
        if self.exited.done():
            return
        if self._folder is not None and (pid := host_pid(self._pidfd)) is not None:
            # without a pid namespace: its process group as well (it has none of its own where it may start nothing)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        await asyncio.wait((self.exited,), timeout=END_TIMEOUT_S)
        if not self.exited.done():
            raise SandboxBroken(f"a sandbox did not end within {END_TIMEOUT_S:.0f} s of SIGKILL")

    async def _call(self, code: str, stdin: str, output: Output) -> tuple[bytes, Cause | None]:
        """(answer, None), or (b"", why it has to end)."""
        if self._calls:
            self._before = self._usage()
        if self._stopped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
            self._stopped = False
        self._calls += 1
        files = [_sealed(code), _sealed(stdin)]
        # code can send on this socket as well: only what begins with the word answers, nothing left from earlier
        word = secrets.token_hex(8).encode()
        try:
            socket.send_fds(self._control, [GO + word], files)
        except OSError:
            return b"", "died"
        finally:
            for fd in files:
                os.close(fd)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._loop.add_reader(self._output, self._read, output)
        self._loop.add_reader(self._control, self._hear, word + b" ", answer)
        try:
            return await self._watched(answer)
        finally:
            self._loop.remove_reader(self._output)
            self._loop.remove_reader(self._control)

    def _hear(self, word: bytes, answer: asyncio.Future[bytes]) -> None:
        """One message at a time, since code can send without end: ``ok`` or ``error ...``; b"" where it is gone."""
        try:
            said = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._loop.remove_reader(self._control)
        if not answer.done() and (not said or said.startswith(word)):
            answer.set_result(said.removeprefix(word))

    async def _watched(self, answer: asyncio.Future[bytes]) -> tuple[bytes, Cause | None]:
        ends = self._loop.time() + self.limits.timeout_s
        while True:
            left = ends - self._loop.time()
            await asyncio.wait((answer, self.exited), timeout=min(left, WATCH_S), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result(), None if answer.result() else "died"
            if self.exited.done():
                return b"", "died"
            if left <= 0:
                return b"", "wall"
            if (cause := self._over_limits()) is not None:
                return b"", cause

    def _over_limits(self) -> Cause | None:
        now = self._usage()
        if now.cpu_s - self._before.cpu_s > self.limits.cpu_s:
            return "cpu"
        if sum(now.private_bytes) > self.limits.memory_mb * MIB + len(now.private_bytes) * self._base_bytes:
            return "memory"
        if self._folder is not None:
            size, count = folder_size(self._folder)
            if size > self.limits.disk_mb * MIB or count > self.limits.files:
                return "disk"
        return None

    def _usage(self) -> Usage:
        pid = host_pid(self._pidfd)
        return Usage() if pid is None else usage(pid)

    def _pause(self) -> Cause | None:
        """Stop what is kept until its next call, threads and all; a cause to end it where it left processes behind."""
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        except ProcessLookupError:
            return "died"
        self._stopped = True
        pid = host_pid(self._pidfd)
        return "died" if pid is None else "processes" if children(pid) else None

    def _read(self, output: Output) -> None:
        try:
            chunk = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return
        if chunk:
            output.add(chunk)
        else:
            self._loop.remove_reader(self._output)

    def _drain(self, output: Output) -> None:
        """Take what is in the pipe now."""
        for _ in range(64):
            try:
                chunk = os.read(self._output, _CHUNK)
            except OSError:  # empty, or closed
                return
            if not chunk:
                return
            output.add(chunk)


def _sealed(text: str) -> int:
    """A file in memory that its receiver can read but not change, nor grow beyond its own limits."""
    fd = os.memfd_create("call", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        file.write(text.encode("utf-8"))
        file.flush()
        file.seek(0)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd

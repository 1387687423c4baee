"""The warm interpreter that every sandbox is forked from: single-threaded, with the libraries already imported.

It is a process of its own (the server has threads and must not fork), speaks over one socket, and ends with the
server. Started by :mod:`tools.python.forkserver`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from typing import Any, Protocol

from tools.python import driver, kernel
from tools.python.landlock import Landlock
from tools.python.limits import SandboxLimits, apply_rlimits
from tools.python.namespaces import Namespaces

MESSAGE_BYTES = 4096


class Isolation(Protocol):
    files: tuple[int, ...]

    def fork(self) -> int: ...

    def confine(self, limits: SandboxLimits, base_bytes: int, folder: str | None) -> None: ...


class NoIsolation:
    """Limits and nothing else (``allow_unsafe``)."""

    files: tuple[int, ...] = ()

    def fork(self) -> int:
        return os.fork()

    def confine(self, limits: SandboxLimits, base_bytes: int, folder: str | None) -> None:
        assert folder is not None, "without namespaces the server gives each sandbox its folder"
        kernel.set_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.chdir(folder)
        apply_rlimits(limits, base_bytes, own_user=False)


def main(channel_fd: int) -> None:
    channel = socket.socket(fileno=channel_fd)
    settings = json.loads(channel.recv(MESSAGE_BYTES))
    limits = SandboxLimits(**settings["limits"])
    stage = f"isolation={settings['isolation']}"
    try:
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        isolation: Isolation
        match settings["isolation"]:
            case "namespaces":
                isolation = Namespaces.enter(proc)
            case "landlock":
                isolation = Landlock()
            case "none":
                isolation = NoIsolation()
        for module in settings["preload"]:
            stage = f"preload={module}"
            importlib.import_module(module)
        stage = "start-up"
        _forget_ours()
        base_bytes = _address_space(proc)
    except Exception as error:
        _send(channel, failed=f"{stage}: {_text(error)}")
        return
    gc.collect()
    gc.freeze()  # a collection in a fork must not touch, and so copy, every page of the warm interpreter
    _send(channel, ready=True)
    running: dict[int, tuple[int, int]] = {}  # pidfd: (number, pid)
    with contextlib.suppress(ConnectionError):  # the server may be gone amid an answer to it
        _serve(channel, isolation, limits, base_bytes, running)
    for _, pid in running.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if settings["folder"] is not None:
        shutil.rmtree(settings["folder"], ignore_errors=True)  # where the server did not live to do it
    os._exit(0)


def _forget_ours() -> None:
    """Sandboxed code must not find this project's modules."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]


def _address_space(proc: int) -> int:
    fd = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    pages = int(os.read(fd, 200).split()[0])
    os.close(fd)
    return pages * os.sysconf("SC_PAGESIZE")


def _text(error: Exception) -> str:
    return str(error.args[1]) if isinstance(error, OSError) and len(error.args) > 1 else repr(error)


def _send(channel: socket.socket, pidfds: tuple[int, ...] = (), **message: Any) -> None:
    socket.send_fds(channel, [json.dumps(message).encode()[:MESSAGE_BYTES]], pidfds)


def _serve(
    channel: socket.socket,
    isolation: Isolation,
    limits: SandboxLimits,
    base_bytes: int,
    running: dict[int, tuple[int, int]],
) -> None:
    """Fork what is asked for, and tell how each fork ended, until the server goes away."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != channel.fileno():
                number, ended = running.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                _, status, usage = os.wait4(ended, 0)
                cpu_s = usage.ru_utime + usage.ru_stime
                _send(channel, exited=number, status=os.waitstatus_to_exitcode(status), cpu_s=cpu_s)
                continue
            message, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
            if not message:
                return
            order = json.loads(message)
            pid: int | None
            try:
                pid = isolation.fork()
            except OSError as error:
                pid = None
                _send(channel, refused=order["number"], reason=_text(error))
            if pid == 0:
                _child(order, files, isolation, limits, base_bytes)
            for fd in files:
                os.close(fd)
            if pid is None:
                continue
            pidfd = os.pidfd_open(pid)
            running[pidfd] = (order["number"], pid)
            poll.register(pidfd, select.POLLIN)
            _send(channel, (pidfd,), spawned=order["number"])


def _child(
    order: dict[str, Any], files: list[int], isolation: Isolation, limits: SandboxLimits, base_bytes: int
) -> None:
    """Shut this fork in and run what it is sent; never returns."""
    try:
        control_fd, output = files
        control = socket.socket(fileno=control_fd)
        try:
            _close_all_but(control_fd, output, *isolation.files)
            isolation.confine(limits, base_bytes, order["folder"])
            _new_random_numbers()
        except Exception as error:
            control.send(f"failed {_text(error)}".encode()[:MESSAGE_BYTES])
            return
        control.send(b"ready")
        driver.serve(control, output)
    finally:
        os._exit(125)


def _close_all_but(*kept: int) -> None:
    """Of the server's and the zygote's files nothing stays open in a sandbox."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _new_random_numbers() -> None:
    """Forks of one interpreter would all draw the same; Python's own generator reseeds itself, numpy's does not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(int.from_bytes(os.urandom(4), "little"))

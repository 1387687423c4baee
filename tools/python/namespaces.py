"""Isolation by namespaces, in two layers.

Outer, once: the process that forks sandboxes gets namespaces of its own, with an empty network, and a read-only root
that holds the interpreter and its libraries and nothing else. It is init of its pid namespace, so the kernel kills
every sandbox with it.

Inner, for each sandbox: a user, pid, mount, network, ipc and uts namespace of its own, a tmpfs as the only place to
write, no capability, and the system-call filter. Sandboxed code is init of its pid namespace: whatever it started
ends with it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tools.python import kernel, seccomp
from tools.python.limits import SandboxLimits, apply_rlimits

NOBODY = 65534
INNER_ID = 1000
HOME = "/tmp"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
_OUTER = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_INNER = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS


def visible_paths() -> list[str]:
    """What sandboxed code can read of the host: the interpreter's prefixes and shared libraries."""
    wanted = [sys.prefix, sys.base_prefix, *_LIBRARIES]
    paths = sorted({os.path.abspath(path) for path in wanted if path and os.path.exists(path)})
    return [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]


def hidden_path(paths: list[str]) -> str | None:
    """The first of ``paths`` that lies below the sandbox's own folder, or None."""
    return next((path for path in paths if path.startswith(f"{HOME}/")), None)


class Namespaces:
    """Made by :meth:`enter` in the process that becomes the outer layer; :meth:`confine` runs in each fork of it."""

    def __init__(self, proc: int, other_user: bool) -> None:
        self.files: tuple[int, ...] = (proc,)  # what confine needs; it closes it
        self._proc = proc
        self._own_pids = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        self._other_user = other_user
        self._filter = seccomp.Filter(seccomp.program(own_pid=None))

    @classmethod
    def enter(cls, proc: int) -> Namespaces:
        """Return in a child, as init of the outer namespaces; the caller itself waits for it and exits.

        ``proc`` is the host's /proc, opened; the new root has none. Raises OSError, in the child or in the caller.
        """
        other_user = os.geteuid() == 0 and _is_mapped(NOBODY)
        ready, go = os.pipe(), os.pipe()
        helper = os.fork()
        if helper == 0:
            # only from outside the new user namespace can more than one user be mapped into it
            os.close(ready[1])
            failed = not os.read(ready[0], 1) or _map_users(f"/proc/{os.getppid()}", other_user)
            os.write(go[1], b"-" if failed else b"+")
            os._exit(0)
        os.close(go[1])
        kernel.unshare(_OUTER, "user, mount, pid, net, ipc, uts, cgroup")
        os.write(ready[1], b"x")
        mapped = os.read(go[0], 1)
        os.waitpid(helper, 0)
        if mapped != b"+":
            raise OSError(1, "the users of the new user namespace cannot be mapped")
        init = os.fork()
        if init:
            os.closerange(3, 256)  # the channel to the server must close when init ends
            _, status = os.waitpid(init, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 255)
        kernel.set_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # the caller killed: no zygote that nobody knows
        for fd in (*ready, go[0]):
            os.close(fd)
        _build_root(visible_paths())
        return cls(proc, other_user)

    def fork(self) -> int:
        """Fork a child that is init of a pid namespace of its own; 0 in the child."""
        kernel.unshare(kernel.CLONE_NEWPID, "pid")
        child = -1
        try:
            child = os.fork()
        finally:
            if child:  # the next one gets a fresh namespace, which can be made from our own only
                kernel.set_namespace(self._own_pids, kernel.CLONE_NEWPID)
        return child

    def confine(self, limits: SandboxLimits, base_bytes: int, folder: str | None) -> None:
        """Shut this process in, for good. Raises OSError, and then nothing may run in it."""
        if self._other_user:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            kernel.set_process(kernel.PR_SET_DUMPABLE, 1)  # else its files in /proc are not its own
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(_INNER, "user, mount, net, ipc, uts")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{INNER_ID} {user} 1"),
            ("gid_map", f"{INNER_ID} {group} 1"),
        ):
            fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=self._proc)
            os.write(fd, text.encode())
            os.close(fd)
        os.close(self._proc)
        size = f"size={limits.disk_mb}m,nr_inodes={limits.files},mode=0700,uid={INNER_ID},gid={INNER_ID}"
        kernel.mount("tmpfs", HOME, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, size)
        os.chdir(HOME)
        apply_rlimits(limits, base_bytes, own_user=True)
        kernel.drop_capabilities()
        self._filter.install()


def _is_mapped(user: int) -> bool:
    with open("/proc/self/uid_map") as table:
        ranges = [tuple(map(int, line.split())) for line in table]
    return any(first <= user < first + count for first, _, count in ranges)


def _map_users(process: str, other_user: bool) -> bool:
    """Map root of the new user namespace to ourselves (and nobody to nobody); True where it is refused."""
    uid, gid = os.geteuid(), os.getegid()
    more = f"\n{NOBODY} {NOBODY} 1" if other_user else ""
    try:
        if not other_user:
            Path(process, "setgroups").write_text("deny")
        Path(process, "uid_map").write_text(f"0 {uid} 1{more}")
        Path(process, "gid_map").write_text(f"0 {gid} 1{more}")
    except OSError:
        return True
    return False


def _build_root(paths: list[str]) -> None:
    """A root of its own: ``paths`` read-only at their places, a few devices, an empty /tmp."""
    if hidden := hidden_path(paths):
        raise OSError(1, f"the interpreter lies in {hidden}, which the sandbox's own {HOME} would hide")
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    # sources are opened first: the new root is put together on /tmp, which may hide some of them
    sources = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in (*paths, *_DEVICES)]
    root = "/tmp"
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    for path, source in sources:
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path in _LIBRARIES and os.path.islink(path):
            os.symlink(os.readlink(path), target)
        elif os.path.isdir(path):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        if path not in _DEVICES and not os.path.islink(target):
            kernel.mount(f"/proc/self/fd/{source}", target, flags=kernel.MS_BIND | kernel.MS_REC)
    os.mkdir(root + HOME)
    os.symlink(HOME, f"{root}/dev/shm")
    kernel.restrict_mount(root, kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV, recursive=True)
    for path, source in sources:
        if path in _DEVICES:
            kernel.mount(f"/proc/self/fd/{source}", root + path, flags=kernel.MS_BIND)
            kernel.restrict_mount(root + path, kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NOEXEC, recursive=False)
        os.close(source)
    kernel.change_root(root)

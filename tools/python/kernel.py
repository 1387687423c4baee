"""The kernel calls that isolation is made of and Python has no function for, through libc (Linux only).

Each raises OSError, with the call's name in its text, where the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x4_0000
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38

# the same numbers on every architecture that came after them
SYS_MOUNT_SETATTR = 442
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
MACHINE = platform.machine()

_AT_RECURSIVE, _AT_EMPTY_PATH = 0x8000, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    """Any call by its number; integers go as C long, everything else as ctypes has it."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(what, _libc.syscall(ctypes.c_long(number), *given))


def unshare(flags: int, what: str) -> None:
    _checked(f"unshare({what})", _libc.unshare(flags))


def set_namespace(fd: int, kind: int) -> None:
    _checked("setns", _libc.setns(fd, kind))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    result = _libc.mount(os.fsencode(source), os.fsencode(target), encoded, flags, data.encode() or None)
    _checked(f"mount({kind or source} on {target})", result)


def restrict_mount(path: str, flags: int, *, recursive: bool) -> None:
    """Add read-only, nosuid, nodev or noexec to the mount at ``path`` (these MS_ flags are MOUNT_ATTR_ flags too)."""
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns_fd
    at = ctypes.c_char_p(os.fsencode(path))
    how = _AT_RECURSIVE if recursive else 0
    syscall(f"mount_setattr({path})", SYS_MOUNT_SETATTR, -100, at, how, attributes, ctypes.sizeof(attributes))


def change_root(path: str) -> None:
    """Make the mount at ``path`` the root; the old root is gone for this mount namespace."""
    os.chdir(path)
    dot = ctypes.c_char_p(b".")
    syscall("pivot_root", SYS_PIVOT_ROOT[MACHINE], dot, dot)
    _checked("umount2", _libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def set_process(option: int, value: int) -> None:
    _checked(f"prctl({option})", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def drop_capabilities() -> None:
    """No capability now, and (no_new_privs) none by executing anything later."""
    header = (ctypes.c_uint32 * 2)(0x2008_0522, 0)  # version 3, this process
    _checked("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))
    set_process(PR_SET_NO_NEW_PRIVS, 1)

"""Isolation without namespaces, for unprivileged containers: Landlock for files, TCP and signals, and a stricter
system-call filter.

What it cannot do: the code has no processes of its own, sees which paths exist, and the size of its folder is watched
rather than capped. See docs/sandbox.md.
"""

from __future__ import annotations

import ctypes
import errno
import os

from tools.python import kernel, seccomp
from tools.python.limits import SandboxLimits, apply_rlimits
from tools.python.namespaces import visible_paths

# Truncating a file by its path (3), TCP (4), ioctl on devices (5), signals and abstract sockets (6): with less, files
# of the server's user could be emptied.
OLDEST_ABI = 3
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_RULE_PATH_BENEATH = 1
_ALL_FILE_RIGHTS = {3: (1 << 15) - 1, 5: (1 << 16) - 1}  # by the ABI that brought them
_TCP = {4: 0b11}
_SCOPES = {6: 0b11}
_OPEN_TO_ALL = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def abi() -> int:
    """The kernel's Landlock version. Raises OSError where it has none, or one that is too old to shut code in."""
    found = kernel.syscall("Landlock is not to be had", kernel.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
    if found < OLDEST_ABI:
        raise OSError(errno.EOPNOTSUPP, f"Landlock ABI {found} is too old: {OLDEST_ABI} is needed (Linux 6.2)")
    return found


def _up_to(table: dict[int, int], version: int) -> int:
    return max((value for since, value in table.items() if since <= version), default=0)


class Landlock:
    """Made once in the process that forks; :meth:`confine` runs in each fork."""

    files: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._abi = abi()
        self._paths = visible_paths()

    def fork(self) -> int:
        return os.fork()

    def confine(self, limits: SandboxLimits, base_bytes: int, folder: str | None) -> None:
        """Shut this process in, with ``folder`` as the only place to write. Raises OSError."""
        assert folder is not None, "without namespaces the server gives each sandbox its folder"
        kernel.set_process(kernel.PR_SET_PDEATHSIG, 9)
        os.chdir(folder)
        apply_rlimits(limits, base_bytes, own_user=False)
        kernel.drop_capabilities()
        self._restrict(folder)
        seccomp.Filter(seccomp.program(own_pid=os.getpid())).install()

    def _restrict(self, folder: str) -> None:
        rights = _up_to(_ALL_FILE_RIGHTS, self._abi)
        attributes = (ctypes.c_uint64 * 3)(rights, _up_to(_TCP, self._abi), _up_to(_SCOPES, self._abi))
        # an older kernel knows a shorter record, and takes a longer one where the rest is zero
        size = ctypes.sizeof(attributes)
        ruleset = kernel.syscall("landlock_create_ruleset", kernel.SYS_LANDLOCK_CREATE_RULESET, attributes, size, 0)
        for path in self._paths:
            here = _EXECUTE | _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
            _allow(ruleset, path, here)
        for path in _OPEN_TO_ALL:
            _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
        _allow(ruleset, folder, rights & ~_EXECUTE)
        kernel.syscall("landlock_restrict_self", kernel.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = _PathBeneath(rights, target)
    what = f"landlock_add_rule({path})"
    kernel.syscall(what, kernel.SYS_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(target)

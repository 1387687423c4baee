"""The system-call filter of sandboxed code: a classic BPF program, built by hand (libseccomp need not be there).

Calls that reach beyond the sandbox or into rarely used, often broken parts of the kernel are refused with EPERM; so
Python sees a PermissionError. A call through another architecture's table kills the process. Numbers newer than this
table answer ENOSYS, so that a new kernel cannot open a new door.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from tools.python import kernel

# name: (x86_64, aarch64); None where the architecture has no such call
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, None),
    "listen": (50, 201),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
    "vhangup": (153, 58),
}
# refused only for some arguments, or with another answer: see _conditions
_CONDITIONAL = {"clone", "clone3", "fcntl", "ioctl", "kill", "prctl", "prlimit64", "tgkill"}
# Without namespaces the code shares its user and its process table with the server: no process of its own, no signal
# to another, and no change to a file's metadata, which Landlock does not watch.
_ONLY_WITHOUT_NAMESPACES = {
    "chmod",
    "chown",
    "execve",
    "execveat",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "fork",
    "fremovexattr",
    "fsetxattr",
    "futimesat",
    "lchown",
    "lremovexattr",
    "lsetxattr",
    "removexattr",
    "setxattr",
    "utime",
    "utimensat",
    "utimes",
    "vfork",
}
_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NEWEST_KNOWN = 462  # mseal, Linux 6.10

_NEW_NAMESPACES = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
)
_CLONE_THREAD = 0x1_0000
_SIGNAL_OWNER_COMMANDS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: a signal to any process of the user
_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX; FIOSETOWN, SIOCSPGRP as F_SETOWN
_THREAD_NAME_OPTIONS = (15, 16)  # PR_SET_NAME, PR_GET_NAME

# linux/bpf_common.h
_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_SET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF_0000, 0x8000_0000
_EPERM, _ENOSYS = (0x0005_0000 | number for number in (errno.EPERM, errno.ENOSYS))
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, value


def _load(offset: int) -> _Instruction:
    return (_LOAD, 0, 0, offset)


def _answer(action: int) -> _Instruction:
    return (_RETURN, 0, 0, action)


def _argument(index: int, *, high: bool = False) -> _Instruction:
    return _load(_ARGUMENTS + 8 * index + 4 * high)


def _refuse_values(index: int, values: tuple[int, ...]) -> list[_Instruction]:
    """Refuse the call where the (32-bit) argument is one of ``values``."""
    found = [instruction for value in values for instruction in ((_JUMP_EQUAL, 0, 1, value), _answer(_EPERM))]
    return [_argument(index), *found]


def _only_values(index: int, values: tuple[int, ...]) -> list[_Instruction]:
    """Refuse the call unless the (32-bit) argument is one of ``values``."""
    found = [instruction for value in values for instruction in ((_JUMP_EQUAL, 0, 1, value), _answer(_ALLOW))]
    return [_argument(index), *found, _answer(_EPERM)]


def _conditions(own_pid: int | None) -> dict[str, list[_Instruction]]:
    rules = {
        # its flags lie in memory, where no filter sees them; glibc falls back to clone
        "clone3": [_answer(_ENOSYS)],
        "clone": [_argument(0), (_JUMP_SET, 0, 1, _NEW_NAMESPACES), _answer(_EPERM)],
        "fcntl": _refuse_values(1, _SIGNAL_OWNER_COMMANDS),
        "ioctl": _refuse_values(1, _IOCTLS),
        "prctl": _only_values(0, _THREAD_NAME_OPTIONS),
        # reading a limit is fine, a new value is not
        "prlimit64": [
            _argument(2),
            (_JUMP_EQUAL, 1, 0, 0),
            _answer(_EPERM),
            _argument(2, high=True),
            (_JUMP_EQUAL, 1, 0, 0),
            _answer(_EPERM),
        ],
    }
    if own_pid is not None:
        rules["clone"] += [(_JUMP_SET, 1, 0, _CLONE_THREAD), _answer(_EPERM)]
        rules["kill"] = rules["tgkill"] = _only_values(0, (own_pid,))
    return rules


def program(*, own_pid: int | None, machine: str = kernel.MACHINE) -> list[_Instruction]:
    """The filter for ``machine``. ``own_pid``: the process's pid where it has no namespaces of its own, else None.

    Raises OSError where the machine's architecture is not known.
    """
    if machine not in _AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"no system-call table for {machine}; known are {', '.join(_AUDIT_ARCH)}")
    column = list(_AUDIT_ARCH).index(machine)
    code: list[_Instruction] = [
        _load(_ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _answer(_KILL),
        _load(_NR),
        (_JUMP_GREATER, 0, 1, _NEWEST_KNOWN),  # takes x32's numbers as well, which begin at 0x40000000
        _answer(_ENOSYS),
    ]
    conditions = _conditions(own_pid)
    for name, numbers in _NUMBERS.items():
        number = numbers[column]
        if number is None or (own_pid is None and name in _ONLY_WITHOUT_NAMESPACES):
            continue
        if name in _CONDITIONAL and name not in conditions:
            continue
        body = [*conditions[name], _answer(_ALLOW)] if name in conditions else [_answer(_EPERM)]
        code += [(_JUMP_EQUAL, 0, len(body), number), *body]
    return [*code, _answer(_ALLOW)]


class _SockFprog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Filter:
    """A program in the kernel's form, made once and installed in many forks."""

    def __init__(self, instructions: list[_Instruction]) -> None:
        packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
        self._buffer = ctypes.create_string_buffer(packed, len(packed))
        self._program = _SockFprog(len(instructions), ctypes.cast(self._buffer, ctypes.c_void_p))

    def install(self) -> None:
        """Put the filter on this process and whatever it starts, for good. Raises OSError."""
        kernel.syscall("seccomp", kernel.SYS_SECCOMP[kernel.MACHINE], 1, 0, ctypes.byref(self._program))

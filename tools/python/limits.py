"""What sandboxed code may use, in one record that travels to the process that applies it."""

from __future__ import annotations

import resource
from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one sandbox; times hold for one call, everything else for the sandbox.

    ``memory_mb`` is what the code may use on top of the warm interpreter: a process that asks for more gets a
    MemoryError, and processes that together hold more are killed. ``disk_mb`` and ``files`` bound the private
    folder, ``file_mb`` one file of it. ``processes`` counts threads too.
    """

    timeout_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 512
    processes: int = 32
    disk_mb: int = 64
    file_mb: int = 64
    files: int = 4096
    output_bytes: int = 16_384

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")


def apply_rlimits(limits: SandboxLimits, base_bytes: int, *, own_user: bool) -> None:
    """Set this process's own limits. ``base_bytes``: the address space that the interpreter has already.

    Without a user namespace of its own (``own_user``) the kernel would count all processes of the server's user.
    """
    for kind, value in (
        (resource.RLIMIT_AS, base_bytes + limits.memory_mb * MIB),
        (resource.RLIMIT_FSIZE, limits.file_mb * MIB),
        (resource.RLIMIT_NPROC, limits.processes if own_user else resource.RLIM_INFINITY),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 256),
    ):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = hard if value == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))

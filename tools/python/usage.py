"""What a process and its descendants use, read from /proc: from outside, so that the code cannot lie about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """``cpu_s``: processor time, ended children included. ``private_bytes``: of each process, without shared memory."""

    cpu_s: float = 0.0
    private_bytes: tuple[int, ...] = ()


def host_pid(pidfd: int) -> int | None:
    """The process's number in our own pid namespace; None where it has ended and was reaped."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            pid = int(line.split()[1])
            return pid if pid > 0 else None
    return None


def children(pid: int) -> list[int]:
    """Direct children (zombies as well) of all threads of ``pid``; [] where it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def family(pid: int) -> Iterator[int]:
    """``pid`` and its descendants."""
    yield pid
    for child in children(pid):
        yield from family(child)


def usage(pid: int) -> Usage:
    cpu_ticks, private = 0, []
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            resident, shared = Path(f"/proc/{member}/statm").read_text().split()[1:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        cpu_ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        private.append((int(resident) - int(shared)) * _PAGE)
    return Usage(cpu_ticks * _TICK_S, tuple(private))


def folder_size(folder: Path) -> tuple[int, int]:
    """Bytes and number of the files below ``folder``, as far as they can be read while somebody changes them."""
    size = count = 0
    for place, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            try:
                size += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
    return size, count

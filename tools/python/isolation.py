"""Choosing the isolation that this machine can give, or saying exactly why it cannot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.python.forkserver import ForkServer, IsolationName, IsolationUnavailable
from tools.python.limits import SandboxLimits
from tools.python.namespaces import hidden_path, visible_paths

Wanted = Literal["auto", "namespaces", "landlock", "none"]

# sysctl, the value that forbids user namespaces, the value that allows them
_SYSCTLS = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)
_CONTAINER = "in a container, its seccomp and AppArmor profiles must allow unshare and mount"
_LANDLOCK = "Linux 6.2 or later with CONFIG_SECURITY_LANDLOCK, and `landlock` among the kernel's lsm="


class PythonUnavailable(Exception):
    """The python tool cannot start as asked; the text says what is missing and how to get it."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Isolated:
    """``refused``: each stronger isolation that was tried, with the reason why it is not had."""

    server: ForkServer
    name: IsolationName
    refused: dict[str, str]


def start_isolated(wanted: Wanted, limits: SandboxLimits, preload: Sequence[str], *, allow_unsafe: bool) -> Isolated:
    """Start the warm interpreter with ``wanted`` isolation; ``auto`` takes the strongest that can be had.

    Raises PythonUnavailable. Unisolated code runs only where ``allow_unsafe`` is set.
    """
    if sys.platform != "linux":
        raise PythonUnavailable(f"python: the tool needs Linux, not {sys.platform}; elsewhere: python.engine=remote")
    if wanted == "none" and not allow_unsafe:
        raise PythonUnavailable("python.isolation=none runs the model's code as you; it needs python.allow_unsafe=true")
    candidates: list[IsolationName] = ["namespaces", "landlock"] if wanted == "auto" else [wanted]
    if allow_unsafe and "none" not in candidates:
        candidates.append("none")
    refused: dict[str, str] = {}
    for name in candidates:
        try:
            return Isolated(ForkServer(name, limits, preload), name, refused)
        except IsolationUnavailable as error:
            if str(error).startswith("preload="):
                advice = "install it, or take it out of python.preload"
                raise PythonUnavailable(f"python.{error}; {advice}") from error
            refused[name] = str(error).removeprefix(f"isolation={name}: ")
    reasons = "".join(f"\n  {name}: {reason}; {remedy(name)}" for name, reason in refused.items())
    raise PythonUnavailable(
        f"python: this machine cannot isolate the model's code (python.isolation={wanted}):{reasons}\n"
        "  or run it elsewhere: python.engine=remote python.url=http://...\n"
        "  or run it unprotected, as yourself: python.allow_unsafe=true"
    )


def remedy(name: str) -> str:
    """What to change on this machine so that ``name`` works."""
    if name == "landlock":
        return _LANDLOCK
    wrong = [f"sysctl -w {key}={allows}" for key, forbids, allows in _SYSCTLS if _sysctl(key) == forbids]
    if not wrong and (hidden := hidden_path(visible_paths())):
        return f"make the Python environment elsewhere than in {hidden}"
    return " and ".join(wrong) or _CONTAINER


def _sysctl(key: str) -> str | None:
    try:
        return Path("/proc/sys", *key.split(".")).read_text().strip()
    except OSError:
        return None


def probe() -> dict[str, str | None]:
    """For each kind of isolation None where it works here, else the reason. Takes a fraction of a second."""
    found: dict[str, str | None] = {}
    names: tuple[IsolationName, ...] = ("namespaces", "landlock")
    for name in names:
        try:
            ForkServer(name, SandboxLimits(), ()).close()
            found[name] = None
        except IsolationUnavailable as error:
            found[name] = f"{str(error).removeprefix(f'isolation={name}: ')}; {remedy(name)}"
    return found

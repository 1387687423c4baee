"""What must be there before anything of verl is imported, each lack with its remedy."""

from __future__ import annotations

from importlib import metadata

from agent_rl.errors import UsageError

VERL_VERSION = "0.9.1"
EXTRA = 'pip install "agent-rl[verl]"'
# Needed by verl's trainer; its own installation forgets the first.
MODULES = {"TransferQueue": "transfer_queue", "tensordict": "tensordict", "torchdata": "torchdata", "ray": "ray"}


def check_environment() -> None:
    """Raise UsageError unless verl is here in the version that the adapters were written for, with what it needs."""
    found = _version("verl")
    if found is None:
        raise UsageError(f"backend=verl needs verl {VERL_VERSION}, which is not installed: {EXTRA}")
    if found != VERL_VERSION:
        raise UsageError(
            f"backend=verl was written for verl {VERL_VERSION} and its internals, but verl {found} is installed: "
            f"{EXTRA} (in an environment of its own)"
        )
    lacking = [name for name in MODULES if _version(name) is None]
    if lacking:
        raise UsageError(f"backend=verl needs {', '.join(lacking)}, not installed here: {EXTRA}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

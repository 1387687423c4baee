"""`tools`, `tasks`, `retrieval_index` and `configs` are plain names: make sure that they are our packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from agent_rl.errors import UsageError

SIBLINGS = ("tools", "tasks", "retrieval_index", "configs")


def assert_layout() -> None:
    """Raise UsageError unless each sibling package would be imported from beside `agent_rl`.

    A folder `tools` in the working directory, or a package of that name that something else installed, would
    be imported in place of ours and fail much later with an unrelated message. Nothing is imported here.
    """
    home = Path(__file__).resolve().parent.parent
    faults = []
    for name in SIBLINGS:
        found = _location(name)
        if found is None:
            faults.append(f"{name}: not found; install agent-rl again")
        elif found != home / name:
            faults.append(f"{name}: {found} comes before {home / name}")
    if faults:
        raise UsageError(
            "packages of agent_rl are hidden by others of the same name:\n  "
            + "\n  ".join(faults)
            + "\nrun from another directory, or take the other off PYTHONPATH or out of the environment"
        )


def _location(name: str) -> Path | None:
    """The folder (or file, for a module) that ``import name`` would take; None where there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None

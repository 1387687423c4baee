"""What must be there before anything of verl is imported, each lack with its remedy."""

from __future__ import annotations

from importlib import metadata

from agent_rl.errors import UsageError

VERL_VERSION = "0.9.1"
EXTRA = 'pip install "agent-rl[verl]"'
# Needed by verl's trainer; its own installation forgets the first.
NEEDED = ("TransferQueue", "tensordict", "torchdata", "ray")
ENGINES = ("vllm", "sglang")


def check_environment(rollout_engine: str | None = None) -> None:
    """Raise UsageError unless verl is here in the version that the adapters were written for, with what it needs.

    ``rollout_engine``: one that must be on this machine too, where it is a package of its own.
    """
    found = _version("verl")
    if found is None:
        raise UsageError(f"backend=verl needs verl {VERL_VERSION}, which is not installed: {EXTRA}")
    if found != VERL_VERSION:
        raise UsageError(
            f"backend=verl was written for verl {VERL_VERSION} and its internals, but verl {found} is installed: "
            f"{EXTRA} (in an environment of its own)"
        )
    lacking = [name for name in NEEDED if _version(name) is None]
    if lacking:
        raise UsageError(f"backend=verl needs {', '.join(lacking)}, not installed here: {EXTRA}")
    if rollout_engine in ENGINES and _version(rollout_engine) is None:
        raise UsageError(
            f"backend.rollout_engine={rollout_engine} needs {rollout_engine}, which is not installed here: "
            f'pip install "verl[{rollout_engine}]=={VERL_VERSION}"'
        )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

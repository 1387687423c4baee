"""The tasks that installed packages offer: entry points of the group ``agent_rl.tasks``."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

GROUP = "agent_rl.tasks"


def installed_tasks() -> dict[str, EntryPoint]:
    """By name, sorted. Nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}

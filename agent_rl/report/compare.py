"""Several runs beside each other: where their configurations differ, and which are seeds of one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.report.run_data import Row, RunData
from agent_rl.report.tables import Table
from agent_rl.report.trajectories import visible

# What may differ between two runs of one setting.
_NOT_THE_SETTING = ("seed", "run_dir", "resume", "tools.url", "tools.token_file", "logging.", "backend.threads")


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs, by their places, that differ in nothing but the seed."""

    name: str
    places: tuple[int, ...]


def seed_groups(runs: Sequence[RunData]) -> list[SeedGroup]:
    """In the order of each group's first run. A run without a config, or alone in its setting, is in none."""
    found: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        if run.config:
            settings = {key: value for key, value in flat(run.config).items() if not key.startswith(_NOT_THE_SETTING)}
            found.setdefault(repr(sorted(settings.items())), []).append(place)
    return [
        SeedGroup(f"{runs[places[0]].name} and {len(places) - 1} more", tuple(places))
        for places in found.values()
        if len({runs[place].config.get("seed") for place in places}) > 1
    ]


def config_difference(runs: Sequence[RunData]) -> Table | None:
    """Settings in which the runs differ; None for a single run or runs without a difference."""
    flats = [flat(run.config) for run in runs]
    keys = sorted({key for one in flats for key in one})
    rows = [
        [visible(key), *(visible(str(one.get(key, "-"))) for one in flats)]
        for key in keys
        if len({repr(one.get(key)) for one in flats}) > 1
    ]
    return Table(["setting", *(visible(run.name) for run in runs)], rows) if rows else None


def flat(config: Row, before: str = "") -> dict[str, Any]:
    """``{"algo": {"name": 1}}`` as ``{"algo.name": 1}``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found

"""One pass over the stored trajectories of a run: the counts, and as many whole groups as the page has room for.

The page is a file that people send to each other, so it has a budget. Groups are left out evenly over the run,
never parts of a group, and the page says how many; ``--steps`` puts a part of the run in whole.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.errors import UsageError
from agent_rl.report.run_data import Row, RunData
from agent_rl.report.tally import Tally
from agent_rl.report.trajectories import details, groups_of, read_step, summary

READ_BUDGET_BYTES = 120_000_000  # of gzipped trajectories; beyond it, steps are read evenly over the run
_CHUNK_TRAJECTORIES = 64
_PROBES = 3


@dataclass(slots=True)
class Gathered:
    """``index`` and ``chunks``: base64 of gzipped JSON, a summary a trajectory and its tokens (see ``details``)."""

    index: str = ""
    chunks: list[str] = field(default_factory=list)
    shown: int = 0
    tally: Tally = field(default_factory=Tally)
    notes: list[str] = field(default_factory=list)


def gather(run: RunData, budget_bytes: int, steps: tuple[int, int] | None = None) -> Gathered:
    """``budget_bytes``: what the trajectories may take in the page. ``steps``: the first and last step to take.

    Raises UsageError where no trajectory is stored within ``steps``.
    """
    files = _within(run, steps)
    found = Gathered()
    if not files:
        return found
    sizes = [path.stat().st_size for path in files]
    if sum(sizes) > READ_BUDGET_BYTES:
        every = -(-sum(sizes) // READ_BUDGET_BYTES)
        files = sorted({*files[::every], files[-1]})
        found.notes.append(
            f"The stored trajectories are larger than {READ_BUDGET_BYTES / 1e6:.0f} MB: {len(files)} of {len(sizes)} "
            "steps were read, evenly over the run."
        )
    total = sum(path.stat().st_size for path in files)
    share = min(1.0, 0.9 * budget_bytes / (total * _ratio(files, run.notes)))
    chosen: list[list[Row]] = []  # packed groups: (summary, details) of each member
    seen_groups = 0
    for path in files:
        rows = read_step(path, run.notes)
        found.tally.add(rows)
        for group in groups_of(rows):
            seen_groups += 1
            # The last step whole: it is what one looks at first.
            if int(seen_groups * share) > int((seen_groups - 1) * share) or path is files[-1]:
                chosen.append([{"summary": summary(row), "details": details(row)} for row in group])
    while not _pack(found, chosen, budget_bytes) and len(chosen) > 1:  # the estimate was too hopeful
        chosen = chosen[len(chosen) % 2 :: 2]
    if found.shown < found.tally.trajectories:
        found.notes.append(
            f"The page has room for {found.shown:,} of {found.tally.trajectories:,} trajectories: {len(chosen):,} of "
            f"{seen_groups:,} groups, evenly over the run and each with all its members. All of some steps: "
            f"agent-rl report {run.path} --steps FIRST:LAST"
        )
    return found


def _within(run: RunData, steps: tuple[int, int] | None) -> list[Path]:
    if steps is None:
        return run.trajectory_files
    stored = [(int(path.name.removeprefix("step_").removesuffix(".jsonl.gz")), path) for path in run.trajectory_files]
    inside = [path for step, path in stored if steps[0] <= step <= steps[1]]
    if not inside:
        there = f"stored are {stored[0][0]} to {stored[-1][0]}" if stored else "none is stored"
        raise UsageError(f"--steps {steps[0]}:{steps[1]}: {run.path} has no trajectory of these steps ({there})")
    return inside


def _ratio(files: Sequence[Path], notes: list[str]) -> float:
    """Bytes in the page for a byte of a stored file, tried on a few files of the run."""
    probes = sorted({files[number * (len(files) - 1) // (_PROBES - 1)] for number in range(_PROBES)})
    packed = sum(len(_pack_json([details(row) for row in read_step(path, notes)])) for path in probes)
    return packed / sum(path.stat().st_size for path in probes)


def _pack(found: Gathered, groups: Sequence[Sequence[Row]], budget_bytes: int) -> bool:
    """Fill ``found`` with ``groups``; whether they fit into the budget."""
    index: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    found.chunks = []
    rows = [row for group in groups for row in group]
    for number, row in enumerate(rows, start=1):
        index.append(row["summary"] | {"chunk": len(found.chunks), "at": len(waiting)})
        waiting.append(row["details"])
        if len(waiting) == _CHUNK_TRAJECTORIES or number == len(rows):
            found.chunks.append(_pack_json(waiting))
            waiting = []
    found.index, found.shown = _pack_json(index), len(index)
    return len(found.index) + sum(map(len, found.chunks)) <= budget_bytes


def _pack_json(value: Any) -> str:
    # mtime=0: the same run gives the same bytes.
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()

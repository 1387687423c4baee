"""Stored trajectories: reading them, choosing three to show, and laying out their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agent_rl.errors import ArtifactError
from agent_rl.report.run_data import Row, RunData, read_rows

AUTHORS = ("prompt", "policy", "tool")  # by author code
_PER_TOKEN = ("pieces", "authors", "loss_mask", "logprobs", "weights")
_LAST_FILES = 3
# Control characters (but newline and tab) as their visible pictures; U+2400 is the picture of NUL.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    css: str  # classes: the author, and "trained" where the loss reached it
    hint: str


@dataclass(frozen=True, slots=True)
class ShownTrajectory:
    heading: str
    why: str
    row: Row
    tokens: list[Token]

    @property
    def facts(self) -> list[tuple[str, str]]:
        row = self.row
        pairs = [
            ("step", row.get("step")),
            ("gold", " | ".join(map(str, row.get("gold", [])))),
            ("answer", row.get("answer")),
            ("reward", row.get("reward")),
            ("advantage", row.get("advantage")),
            ("stopped by", row.get("stop_reason")),
            ("turns", row.get("turns")),
            *sorted(row.get("score_parts", {}).items()),
        ]
        return [(name, _number(value)) for name, value in pairs if value is not None]


def last_trajectories(run: RunData) -> list[Row]:
    """Rows of the last few stored steps. Raises ArtifactError where the lists of a row do not fit together."""
    return [row for path in run.trajectory_files[-_LAST_FILES:] for row in _read(path, run.notes)]


def choose_three(rows: Sequence[Row]) -> list[ShownTrajectory]:
    """One that gained (highest reward), one that failed (lowest), a typical one (nearest the medians).

    Only scored trajectories count: one that infrastructure broke says nothing about the policy. The
    choice depends on the rows alone; fewer than three rows give fewer trajectories.
    """
    scored = [row for row in rows if row.get("reward") is not None and not row.get("error")]
    if not scored:
        return []
    left = sorted(scored, key=lambda row: (row["reward"], row.get("advantage") or 0.0))
    gained = left.pop()
    shown = [_shown("One that gained", "Highest reward, and highest advantage among those.", gained)]
    if left:
        shown.append(_shown("One that failed", "Lowest reward, and lowest advantage among those.", left.pop(0)))
    if left:
        middle_reward = median(row["reward"] for row in scored)
        middle_length = median(len(row["pieces"]) for row in scored)
        typical = min(
            left,
            key=lambda row: (abs(row["reward"] - middle_reward), abs(len(row["pieces"]) - middle_length)),
        )
        shown.append(_shown("A typical one", "Reward and length nearest the medians.", typical))
    return shown


def visible(text: str) -> str:
    """Text that a page can carry: control characters as pictures, lone surrogates as U+FFFD."""
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode("utf-8")


def _read(path: Path, notes: list[str]) -> list[Row]:
    rows = read_rows(path, notes)
    for number, row in enumerate(rows, start=1):
        missing = [key for key in _PER_TOKEN if key not in row]
        if missing:
            raise ArtifactError(f"{path}:{number}: key {missing[0]!r} is missing")
        if row["weights"] is None:  # a trajectory that was never trained on
            row["weights"] = [None] * len(row["pieces"])
        lengths = {key: len(row[key]) for key in _PER_TOKEN}
        if len(set(lengths.values())) != 1:
            raise ArtifactError(f"{path}:{number}: lists of different lengths: {lengths}")
    return rows


def _shown(heading: str, why: str, row: Row) -> ShownTrajectory:
    columns = (row[key] for key in _PER_TOKEN)
    return ShownTrajectory(heading, why, row, [_token(*values) for values in zip(*columns, strict=True)])


def _token(piece: str, author: int, trained: int, logprob: float | None, weight: float | None) -> Token:
    name = AUTHORS[author]
    hint = name
    if name == "policy":
        if logprob is None or not math.isfinite(logprob):
            hint += " · logprob unknown"
        else:
            hint += f" · logprob {logprob:.3f} (p {math.exp(logprob):.3f})"
        hint += f" · weight {weight:.3f}" if weight is not None else " · no weight"
        hint += " · trained" if trained else " · not trained"
    return Token(visible(piece), f"{name} trained" if trained else name, hint)


def _number(value: Any) -> str:
    return visible(f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value))

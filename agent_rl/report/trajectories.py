"""Stored trajectories: reading a step, and the form in which the page carries them.

What the page calls *trained* is what took part in the loss: a token of the mask that an update gave a weight. A
trajectory whose group had one reward, or that infrastructure broke, has a mask too, but no update ever saw it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_rl.errors import ArtifactError
from agent_rl.report.run_data import Row, read_rows

AUTHORS = ("prompt", "policy", "tool")  # by author code
POLICY = 1
_PER_TOKEN = ("pieces", "authors", "loss_mask", "logprobs", "weights", "trainer_logprobs")
_TITLE_CHARS = 200  # of a question or an answer in the list; the trajectory itself has all of it
# Control characters (but newline and tab) as their visible pictures; U+2400 is the picture of NUL.
_CONTROLS: dict[int, Any] = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
# Marks that turn the direction of the text after them: a token must not rearrange what stands beside it.
_CONTROLS |= {code: f"⟨U+{code:04X}⟩" for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def visible(text: str) -> str:
    """Text that a page can carry: control characters and direction marks made visible, lone surrogates as ``?``."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode("utf-8")


def read_step(path: Path, notes: list[str]) -> list[Row]:
    """The trajectories of a stored step. Raises ArtifactError where the lists of a row do not fit together."""
    rows = read_rows(path, notes)
    for number, row in enumerate(rows, start=1):
        missing = [key for key in _PER_TOKEN[:4] if key not in row]
        if missing:
            raise ArtifactError(f"{path}:{number}: key {missing[0]!r} is missing")
        for key in ("weights", "trainer_logprobs"):  # None: never trained on, or stored before there was such a key
            if row.get(key) is None:
                row[key] = [None] * len(row["pieces"])
        lengths = {key: len(row[key]) for key in _PER_TOKEN}
        if len(set(lengths.values())) != 1:
            raise ArtifactError(f"{path}:{number}: lists of different lengths: {lengths}")
        if not set(row["authors"]) <= {0, 1, 2}:
            raise ArtifactError(f"{path}:{number}: 'authors' should hold 0, 1 and 2 only")
    return rows


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows by group, groups and members in the order of the file."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row.get("group")), []).append(row)
    return list(found.values())


def status(row: Row) -> str:
    """``trained``, or why no update saw the trajectory."""
    if any(weight is not None for weight in row["weights"]):
        return "trained"
    if row.get("error"):
        return "not trained on: infrastructure broke it, so it has no reward"
    if row.get("advantage") is None:
        return "not trained on: its group was dropped, or it has no reward"
    if row["advantage"] == 0:
        return "no gradient: its advantage is 0 (every member of its group has the same reward)"
    return "not trained on: no weight was stored"


def summary(row: Row) -> dict[str, Any]:
    """What the list of the page needs to know about a trajectory."""
    return {
        "step": row.get("step"),
        "group": visible(str(row.get("group"))),
        "item": _title(row.get("item_id")),
        "sample": row.get("sample"),
        "reward": _finite(row.get("reward")),
        "advantage": _finite(row.get("advantage")),
        "stop": _title(row.get("stop_reason")),
        "question": _title(row.get("question")),
        "answer": None if row.get("answer") is None else _title(row["answer"]),
        "trained": status(row) == "trained",
    }


def details(row: Row) -> dict[str, Any]:
    """The trajectory token by token. ``authors``, ``mask`` and ``trained`` have a digit a token; ``logprobs``,
    ``weights`` and ``mismatch`` (trainer - sampler) have an entry for each policy token."""
    policy = [place for place, author in enumerate(row["authors"]) if author == POLICY]
    weights, logprobs, trainer = row["weights"], row["logprobs"], row["trainer_logprobs"]
    return {
        "pieces": [visible(piece) for piece in row["pieces"]],
        "authors": "".join(map(str, row["authors"])),
        "mask": "".join(str(int(flag)) for flag in row["loss_mask"]),
        "trained": "".join(
            str(int(bool(flag) and weight is not None)) for flag, weight in zip(row["loss_mask"], weights, strict=True)
        ),
        "logprobs": [_finite(logprobs[place]) for place in policy],
        "weights": [_finite(weights[place]) for place in policy],
        "mismatch": [
            None if trainer[place] is None else _finite(trainer[place] - logprobs[place], digits=5) for place in policy
        ],
        "status": status(row),
        "question": visible(str(row.get("question"))),
        "gold": [visible(str(gold)) for gold in row.get("gold") or []],
        "answer": None if row.get("answer") is None else visible(str(row["answer"])),
        "turns": row.get("turns"),
        "error": visible(str(row["error"].get("message") if isinstance(row["error"], dict) else row["error"]))
        if row.get("error")
        else None,
        "parts": {visible(str(name)): _finite(value) for name, value in (row.get("score_parts") or {}).items()},
        "counters": {visible(str(name)): value for name, value in (row.get("counters") or {}).items()},
        "times": {visible(str(name)): value for name, value in (row.get("times") or {}).items()},
    }


def _title(value: Any) -> str:
    text = visible(str(value))
    return text if len(text) <= _TITLE_CHARS else text[:_TITLE_CHARS] + "…"


def _finite(value: Any, digits: int = 4) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return round(float(value), digits)
    return None

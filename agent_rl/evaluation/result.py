"""A finished evaluation: rows, summary, files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.errors import ArtifactError
from agent_rl.evaluation.rows import Row, by_question, write_whole


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Rows of one evaluation and their summary."""

    label: str
    summary: dict[str, Any]
    rows: list[Row]

    def em(self, mode: str) -> list[list[float]]:
        """EM by question (in order of appearance) and sample."""
        return list(by_question(self.rows, mode, "em").values())


def save(result: EvalResult, folder: Path) -> None:
    """Rows first, the summary last: where the summary is, the rows are whole."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in result.rows)
    write_whole(folder / f"{result.label}.jsonl", "".join(lines))
    write_whole(folder / f"{result.label}.json", json.dumps(result.summary, indent=1))


def load(folder: Path, label: str) -> EvalResult | None:
    """A saved evaluation, or None where there is none (or only half of one)."""
    summary = folder / f"{label}.json"
    if not summary.is_file():
        return None
    # not splitlines: an answer may hold what Unicode calls a line's end, and JSON does not escape
    rows = (folder / f"{label}.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return EvalResult(label, json.loads(summary.read_text(encoding="utf-8")), [json.loads(row) for row in rows])


def read_result(address: str) -> EvalResult:
    """A saved evaluation by the path of its summary, or by its folder or run where that holds only one.

    Raises ArtifactError with what there is to choose from.
    """
    path = Path(address)
    folder = path / "eval" if (path / "eval").is_dir() else path
    if folder.is_dir():
        found = sorted(file for file in folder.glob("*.json") if file.with_suffix(".jsonl").is_file())
        if len(found) != 1:
            have = ", ".join(str(file) for file in found) or "none"
            raise ArtifactError(f"{address}: one evaluation is needed, give its file (there: {have})")
        path = found[0]
    try:
        result = load(path.parent, path.stem) if path.suffix == ".json" else None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{address}: is not a whole evaluation ({error})") from error
    if result is None or "label" not in result.summary:
        raise ArtifactError(f"{address}: no evaluation there; give the .json file that agent-rl eval wrote")
    return result


def drop_later(folder: Path, step: int) -> None:
    """Remove evaluations of steps after ``step``: a run that goes on from there does them again."""
    for path in folder.glob("step_*.json"):
        if json.loads(path.read_text(encoding="utf-8"))["step"] > step:
            path.unlink()
            path.with_suffix(".jsonl").unlink()

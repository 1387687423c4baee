"""Reads what a run left behind. Parts may be missing (it may still be going); what is there must be whole."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.errors import ArtifactError, UsageError

Row = dict[str, Any]


@dataclass(slots=True)
class RunData:
    """One run directory. ``metrics`` has the rows of each phase by step; of a repeated step, the last."""

    name: str
    path: Path
    config: Row
    config_text: str
    metrics: dict[str, list[Row]]
    evaluations: list[Row]  # eval/<label>.json in order: before, step_*, after
    comparison: Row
    trajectory_files: list[Path]  # in order of step
    notes: list[str] = field(default_factory=list)

    def evaluation_rows(self, label: str) -> list[Row]:
        """Per-question rows of one evaluation, [] where none were stored."""
        path = self.path / "eval" / f"{label}.jsonl"
        return read_rows(path, self.notes) if path.is_file() else []


def read_run(path: Path) -> RunData:
    """Raises UsageError where ``path`` is no run directory, ArtifactError (with the line) for a broken part."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such run directory")
    config_path, metrics_path = path / "config.yaml", path / "metrics.jsonl"
    if not config_path.is_file() and not metrics_path.is_file():
        raise UsageError(f"{path}: holds neither config.yaml nor metrics.jsonl, so it is not a run directory")
    notes: list[str] = []
    text = _text(config_path) if config_path.is_file() else ""
    metrics: dict[str, dict[int, Row]] = {}
    for row in read_rows(metrics_path, notes) if metrics_path.is_file() else []:
        if "phase" not in row or "step" not in row:
            raise ArtifactError(f"{metrics_path}: a row without 'phase' or 'step': {str(row)[:200]}")
        if not isinstance(row["step"], int):
            raise ArtifactError(f"{metrics_path}: 'step' should be a whole number, not {row['step']!r}")
        metrics.setdefault(str(row["phase"]), {})[int(row["step"])] = row
    evaluations = [_json(file) for file in sorted((path / "eval").glob("*.json")) if file.stem != "comparison"]
    evaluations.sort(key=_evaluation_order)
    comparison_path = path / "eval" / "comparison.json"
    return RunData(
        name=path.resolve().name,
        path=path,
        config=_yaml(config_path, text),
        config_text=text,
        metrics={phase: [rows[step] for step in sorted(rows)] for phase, rows in metrics.items()},
        evaluations=evaluations,
        comparison=_json(comparison_path) if comparison_path.is_file() else {},
        trajectory_files=sorted((path / "trajectories").glob("step_*.jsonl.gz")),
        notes=notes,
    )


def read_rows(path: Path, notes: list[str]) -> list[Row]:
    """The objects of a jsonl file (``.gz`` too).

    A last line that is cut off is what a killed run leaves; it is left out, and ``notes`` says so. Any
    other line that is not a JSON object raises ArtifactError.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ArtifactError(f"{path}: unreadable: {error}") from error
    rows = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == lines[-1][0] and not line.endswith("\n"):
                notes.append(f"{path.name}: line {number} is cut off and was left out.")
                break
            raise ArtifactError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ArtifactError(f"{path}:{number}: should be an object, not {type(row).__name__}")
        rows.append(row)
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path}: not text: {error}") from error


def _json(path: Path) -> Row:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ArtifactError(f"{path}: should be an object, not {type(content).__name__}")
    return {"label": path.stem, **content}


def _yaml(path: Path, text: str) -> Row:
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ArtifactError(f"{path}: not YAML: {error}") from error


def _evaluation_order(evaluation: Row) -> tuple[int, int, str]:
    label = str(evaluation["label"])
    rank = {"before": 0, "after": 2}.get(label, 1)
    return rank, int(evaluation.get("step") or 0), label

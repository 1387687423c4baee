"""Evaluation: greedy and sampled answers to held-out questions, every row stored, means with intervals."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_rl.config.schema import RunConfig
from agent_rl.errors import TrainingError, UsageError
from agent_rl.evaluation.metrics import Interval, avg_at_k, bootstrap_interval, paired_difference, pass_at_k
from agent_rl.rollout.assemble import (
    make_plan,
)
from agent_rl.rollout.engine import RolloutSpec, derive_seed
from agent_rl.rollout.groups import Group, GroupPlan, run_groups
from agent_rl.rollout.trajectory import Trajectory
from agent_rl.train.console import progress
from tasks.base import Task, TaskItem


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Rows of one evaluation and their summary; ``em`` by mode, [questions][samples]."""

    label: str
    summary: dict[str, Any]
    rows: list[dict[str, Any]]

    def em(self, mode: str) -> list[list[float]]:
        """EM by question (in order of appearance) and sample."""
        table: dict[str, list[float]] = {}
        for row in self.rows:
            if row["mode"] == mode:
                table.setdefault(row["item_id"], []).append(row["em"])
        return list(table.values())


def choose_items(task: Task, split: str, questions: int, seed: int) -> list[TaskItem]:
    """A seeded subset of a split, the same for every run with the same seed; in the split's order."""
    items = task.items(split)
    if not items:
        raise UsageError(f"eval.split={split} holds no questions; give task.data a file for it")
    if questions >= len(items):
        return list(items)
    chosen = random.Random(derive_seed(seed, "eval", split)).sample(range(len(items)), questions)
    return [items[index] for index in sorted(chosen)]


async def evaluate(
    config: RunConfig,
    spec: RolloutSpec,
    items: Sequence[TaskItem],
    *,
    label: str,
    step: int,
    log: Callable[[str], None],
) -> EvalResult:
    """Greedy answers and ``eval.samples`` sampled ones (at ``spec.temperature``) for each item.

    A question whose rollout infrastructure broke, after its retries, raises TrainingError: an evaluation with
    holes cannot be compared with another.
    """
    modes: list[tuple[str, RolloutSpec, GroupPlan]] = []
    if config.eval.greedy:
        modes.append(("greedy", replace(spec, temperature=0.0), make_plan(config, size=1)))
    if config.eval.samples:
        modes.append(("sampled", spec, make_plan(config, size=config.eval.samples)))
    if not modes:
        raise UsageError("eval.greedy=false and eval.samples=0 leave nothing to evaluate")
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for mode, mode_spec, plan in modes:
        with progress(f"eval {label} ({mode})", len(items) * plan.size, "answers", log) as advance:
            groups = await run_groups(
                items,
                mode_spec,
                plan,
                seed=config.eval.seed,
                label=f"eval/{mode}",
                on_done=advance,
            )
        rows += [_row(trajectory, mode) for trajectory in _answered(groups)]
    summary = {
        "label": label,
        "step": step,
        "split": config.eval.split,
        "questions": len(items),
        "samples": config.eval.samples,
        "temperature": spec.temperature,
        "seed": config.eval.seed,
        "seconds": round(time.perf_counter() - began, 2),
        **{mode: _summarise(rows, mode) for mode, _, _ in modes},
    }
    return EvalResult(label, summary, rows)


def _answered(groups: Sequence[Group]) -> list[Trajectory]:
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    broken = [trajectory for trajectory in everyone if not trajectory.scored]
    if broken:
        first = broken[0]
        reason = first.failure.message if first.failure else str(first.stop_reason)
        raise TrainingError(
            f"evaluation: {len(broken)} of {len(everyone)} rollouts were not scored; first, {first.item.id}: {reason}"
        )
    return everyone


def _row(trajectory: Trajectory, mode: str) -> dict[str, Any]:
    score = trajectory.score
    assert score is not None
    return {
        "item_id": trajectory.item.id,
        "question": trajectory.item.question,
        "gold": list(trajectory.item.gold),
        "mode": mode,
        "sample": trajectory.sample,
        "answer": trajectory.answer,
        "reward": score.value,
        **score.parts,
        "stop_reason": str(trajectory.stop_reason),
        "searches": trajectory.searches,
        "policy_tokens": trajectory.policy_tokens,
        "seconds": round(trajectory.seconds, 3),
    }


def _summarise(rows: Sequence[dict[str, Any]], mode: str) -> dict[str, Any]:
    tables: dict[str, dict[str, list[float]]] = {}
    chosen = [row for row in rows if row["mode"] == mode]
    for part in (
        "em",
        "f1",
        "cover_em",
        "em_unicode",
        "reward",
        "answered",
        "format",
        "searches",
        "policy_tokens",
    ):
        table: dict[str, list[float]] = {}
        for row in chosen:
            if part in row:
                table.setdefault(row["item_id"], []).append(float(row[part]))
        if table:
            tables[part] = table
    found: dict[str, Any] = {part: _as_dict(bootstrap_interval(list(table.values()))) for part, table in tables.items()}
    em = list(tables["em"].values())
    samples = len(em[0])
    if samples > 1:
        found[f"avg@{samples}"] = _as_dict(bootstrap_interval(avg_at_k(em)))
        found[f"pass@{samples}"] = _as_dict(bootstrap_interval(pass_at_k(em, samples)))
    reasons = [row["stop_reason"] for row in chosen]
    found["stop_reasons"] = {reason: reasons.count(reason) / len(reasons) for reason in sorted(set(reasons))}
    return found


def _as_dict(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def compare(before: EvalResult, after: EvalResult) -> dict[str, dict[str, float]]:
    """Paired differences after - before of EM, by mode, with 95 % intervals over questions."""
    return {
        f"{mode}_em": _as_dict(paired_difference(before.em(mode), after.em(mode)))
        for mode in ("greedy", "sampled")
        if before.em(mode) and after.em(mode)
    }


def save(result: EvalResult, folder: Path) -> None:
    """Rows first, the summary last: where the summary is, the rows are whole."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder / f"{result.label}.jsonl",
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in result.rows),
    )
    _write(folder / f"{result.label}.json", json.dumps(result.summary, indent=1))


def load(folder: Path, label: str) -> EvalResult | None:
    """A saved evaluation, or None where there is none (or only half of one)."""
    summary = folder / f"{label}.json"
    if not summary.is_file():
        return None
    rows = (folder / f"{label}.jsonl").read_text(encoding="utf-8").splitlines()
    return EvalResult(label, json.loads(summary.read_text(encoding="utf-8")), [json.loads(row) for row in rows])


def drop_later(folder: Path, step: int) -> None:
    """Remove evaluations of steps after ``step``: a run that goes on from there does them again."""
    for path in folder.glob("step_*.json"):
        if json.loads(path.read_text(encoding="utf-8"))["step"] > step:
            path.unlink()
            path.with_suffix(".jsonl").unlink()


def save_comparison(comparison: dict[str, dict[str, float]], folder: Path) -> None:
    _write(folder / "comparison.json", json.dumps(comparison, indent=1))


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def describe(result: EvalResult) -> str:
    """One line for the terminal."""
    parts = []
    samples = result.summary["samples"]
    for mode, name in (("greedy", "greedy EM"), ("sampled", f"sampled EM (avg@{samples})")):
        if mode in result.summary:
            em = result.summary[mode]["em"]
            parts.append(f"{name} {em['mean']:.3f} [{em['low']:.3f}, {em['high']:.3f}]")
    where = f"{result.summary['questions']} {result.summary['split']} questions"
    return f"eval {result.label}: {', '.join(parts)} on {where}, {result.summary['seconds']:.0f} s"

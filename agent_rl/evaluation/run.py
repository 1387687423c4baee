"""Evaluation: greedy and sampled answers to held-out questions, every row stored, means with intervals."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_rl.config.schema import RunConfig
from agent_rl.errors import TrainingError, UsageError
from agent_rl.evaluation.provenance import machine_and_versions
from agent_rl.evaluation.result import EvalResult
from agent_rl.evaluation.rows import PartialRows, Row, row_of
from agent_rl.evaluation.summary import summarise
from agent_rl.rollout.assemble import make_plan
from agent_rl.rollout.engine import RolloutSpec, derive_seed
from agent_rl.rollout.groups import GroupPlan, run_groups
from agent_rl.rollout.trajectory import Trajectory
from agent_rl.train.console import progress
from tasks.base import Task, TaskItem


def choose_items(task: Task, split: str, questions: int, seed: int) -> list[TaskItem]:
    """A seeded subset of a split, the same for every run with the same seed; in the split's order."""
    items = task.items(split)
    if not items:
        raise UsageError(f"eval.split={split} holds no questions; give task.data a file for it")
    repeated = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    if repeated:
        raise UsageError(f"eval.split={split}: {len(repeated)} ids name several questions; first: {repeated[0]!r}")
    return choose(items, questions, seed, split)


def choose(items: Sequence[TaskItem], count: int, seed: int, label: str) -> list[TaskItem]:
    """``count`` of ``items``, drawn by ``seed`` and ``label``, in their order."""
    if count >= len(items):
        return list(items)
    chosen = random.Random(derive_seed(seed, "eval", label)).sample(range(len(items)), count)
    return [items[index] for index in sorted(chosen)]


async def evaluate(
    config: RunConfig,
    spec: RolloutSpec,
    items: Sequence[TaskItem],
    *,
    label: str,
    step: int,
    log: Callable[[str], None],
    model: str = "",
    partial: Path | None = None,
    answerable: Collection[str] | None = None,
    engine: str | None = None,
) -> EvalResult:
    """Greedy answers and ``eval.samples`` sampled ones (at ``spec.temperature``) for each item.

        With ``partial``, rows are stored there question by question, and an evaluation of the same ``model``, settings
        and questions that was stopped goes on. The caller removes that file once it has stored the result. A question
    whose rollout infrastructure broke, after its retries, raises TrainingError: an evaluation with holes cannot be
    compared with another. ``engine``: what samples, where it is not ``config.sampler``.
    """
    modes: list[tuple[str, RolloutSpec, GroupPlan]] = []
    if config.eval.greedy:
        modes.append(("greedy", replace(spec, temperature=0.0), make_plan(config, size=1)))
    if config.eval.samples:
        modes.append(("sampled", spec, make_plan(config, size=config.eval.samples)))
    if not modes:
        raise UsageError("eval.greedy=false and eval.samples=0 leave nothing to evaluate")
    began = time.perf_counter()
    with ExitStack() as stack:
        stored = None
        if partial is not None:
            stored = stack.enter_context(PartialRows(partial, _identity(config, items, label, step, model, engine)))
            if stored.rows:
                log(f"eval {label}: going on after {len(stored.rows)} answers in {partial}")
        rows: list[Row] = []
        for mode, mode_spec, plan in modes:
            rows += await _answers(config, mode_spec, plan, items, mode, label, stored, log)
    summary = {
        "label": label,
        "step": step,
        "model": model,
        "task": spec.task.name,
        "split": config.eval.split,
        "questions": len(items),
        "samples": config.eval.samples,
        "temperature": spec.temperature,
        "seed": config.eval.seed,
        "max_batch": config.sampler.max_batch,
        "engine": engine or config.sampler.kind,
        "machine": machine_and_versions(),
        "seconds": round(time.perf_counter() - began, 2),
        **summarise(rows, answerable),
    }
    return EvalResult(label, summary, rows)


async def _answers(
    config: RunConfig,
    spec: RolloutSpec,
    plan: GroupPlan,
    items: Sequence[TaskItem],
    mode: str,
    label: str,
    stored: PartialRows | None,
    log: Callable[[str], None],
) -> list[Row]:
    """The rows of one mode in the order of ``items``: the stored ones, and the others as they come."""
    have = {row["item_id"] for row in stored.rows if row["mode"] == mode} if stored is not None else set()
    # The draws of a question follow from its place among all, so that going on draws what was not drawn yet.
    missing = [place for place, item in enumerate(items) if item.id not in have]
    finished: dict[str, list[Trajectory]] = {}
    rows = [row for row in stored.rows if row["mode"] == mode] if stored is not None else []
    with progress(f"eval {label} ({mode})", len(missing) * plan.size, "answers", log) as advance:

        def done(trajectory: Trajectory) -> None:
            advance()
            members = finished.setdefault(trajectory.item.id, [])
            members.append(trajectory)
            if len(members) == plan.size and all(member.scored for member in members):
                fresh = [row_of(member, mode) for member in sorted(members, key=lambda member: member.sample)]
                rows.extend(fresh)
                if stored is not None:
                    stored.add(fresh)

        await run_groups(
            [items[place] for place in missing],
            spec,
            plan,
            seed=config.eval.seed,
            label=f"eval/{mode}",
            places=missing,
            on_done=done,
        )
    _refuse_holes([trajectory for members in finished.values() for trajectory in members], stored)
    order = {item.id: place for place, item in enumerate(items)}
    return sorted(rows, key=lambda row: (order[row["item_id"]], row["sample"]))


def _refuse_holes(everyone: Sequence[Trajectory], stored: PartialRows | None) -> None:
    broken = [trajectory for trajectory in everyone if not trajectory.scored]
    if broken:
        first = broken[0]
        reason = first.failure.message if first.failure else str(first.stop_reason)
        again = "; the same command asks only what is missing" if stored is not None else ""
        raise TrainingError(
            f"evaluation: {len(broken)} of {len(everyone)} rollouts were not scored; first, {first.item.id}: "
            f"{reason}{again}"
        )


def _identity(
    config: RunConfig, items: Sequence[TaskItem], label: str, step: int, model: str, engine: str | None
) -> dict[str, Any]:
    """What must be the same for rows to belong to one evaluation."""
    values = config.model_dump(mode="json")
    return {
        "label": label,
        "step": step,
        "model": model,
        "engine": engine or config.sampler.kind,
        "items": [item.id for item in items],
        **{name: values[name] for name in ("task", "model", "rollout")},
        "eval": {name: values["eval"][name] for name in ("split", "samples", "greedy", "seed")},
    }


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

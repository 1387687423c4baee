"""Evaluation in the middle of a run: rows and summary in the run's `eval/`, one line of metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent_rl.config.schema import EvalConfig, RunConfig
from agent_rl.evaluation.compare import compare, describe_difference, save_comparison
from agent_rl.evaluation.result import load, save
from agent_rl.evaluation.run import choose_items, describe, evaluate
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.train.metrics import MetricsLog


def due_label(config: EvalConfig, step: int, steps: int) -> str | None:
    """The label of the evaluation that is due once ``step`` of ``steps`` is done, or None."""
    if step == 0:
        return "before" if config.before else None
    if step >= steps:
        return "after" if config.after else None
    return f"step_{step:06d}" if config.every_steps and step % config.every_steps == 0 else None


async def evaluate_at(
    config: RunConfig,
    spec: RolloutSpec,
    run_dir: Path,
    *,
    label: str,
    step: int,
    metrics: MetricsLog,
    log: Callable[[str], None],
    engine: str | None = None,
) -> None:
    """Evaluate the policy of ``step``, unless that was done before; compare "after" with "before"."""
    folder = run_dir / "eval"
    saved = load(folder, label)
    if saved is not None and saved.summary["step"] == step:
        return
    partial = folder / f".{label}.partial.jsonl"
    result = await evaluate(
        config,
        spec,
        choose_items(spec.task, config.eval.split, config.eval.questions, config.eval.seed),
        label=label,
        step=step,
        log=log,
        partial=partial,
        engine=engine,
    )
    ems = {m: result.summary[m]["em"]["mean"] for m in ("greedy", "sampled") if m in result.summary}
    metrics.write("eval", step, {f"{mode}_em": em for mode, em in ems.items()})
    save(result, folder)
    partial.unlink()
    log(describe(result))
    before = load(folder, "before")
    if label == "after" and before is not None:
        comparison = compare(before, result)
        save_comparison(comparison, folder)
        for name, found in comparison.items():
            log(describe_difference(name, found))

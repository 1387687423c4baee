"""`agent-rl eval`: any model or checkpoint on held-out questions."""

from __future__ import annotations

from pathlib import Path

from agent_rl.config.schema import RunConfig
from agent_rl.evaluation.run import EvalResult, choose_items, describe, evaluate, save
from agent_rl.models import resolve_model_path
from agent_rl.rollout.assemble import make_task
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.serving import with_model
from agent_rl.train.checkpoint import find_model


def evaluate_command(config: RunConfig, checkpoint: str | None, out: Path) -> None:
    """Answer, store ``out/<label>.json`` and ``.jsonl``, print the result. None: the model of ``model.path``."""
    task = make_task(config)
    items = choose_items(task, config.eval.split, config.eval.questions, config.eval.seed)
    if checkpoint is None:
        path, label, step = resolve_model_path(config.model.path), "base", 0
    else:
        path, label, step = find_model(Path(config.run_dir), checkpoint)
    label = f"{label}_{config.eval.split}"

    async def answer(spec: RolloutSpec) -> EvalResult:
        return await evaluate(config, spec, items, label=label, step=step, log=print)

    result = with_model(config, task, path, answer)
    save(result, out)
    print(describe(result))
    print(f"rows: {out / (label + '.jsonl')}   summary: {out / (label + '.json')}")

"""`agent-rl rollout`: sample trajectories, store them, and show them in the terminal."""

from __future__ import annotations

from pathlib import Path

from agent_rl.config.schema import RemoteSamplerConfig, RunConfig
from agent_rl.errors import UsageError
from agent_rl.evaluation.run import choose_items
from agent_rl.models import resolve_model_path
from agent_rl.rollout.assemble import make_plan, make_task
from agent_rl.rollout.codec import TokenCodec
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.groups import Group, run_groups
from agent_rl.rollout.ledger import Author
from agent_rl.rollout.record import trajectory_record, write_records
from agent_rl.rollout.serving import with_model
from agent_rl.rollout.statistics import rollout_metrics
from agent_rl.rollout.trajectory import Trajectory
from agent_rl.train.checkpoint import find_model


def rollout_command(config: RunConfig, questions: int, out: Path, checkpoint: str | None = None) -> None:
    """Sample ``rollout.group_size`` trajectories for each of ``questions`` questions of ``eval.split``."""
    if isinstance(config.sampler, RemoteSamplerConfig) and config.sampler.api == "chat":
        raise UsageError(
            "sampler.api=chat knows no token and no log-probability, which `agent-rl rollout` stores; it is for "
            "`agent-rl eval` alone"
        )
    task = make_task(config)
    items = choose_items(task, config.eval.split, questions, config.seed)
    path = find_model(Path(config.run_dir), checkpoint)[0] if checkpoint else resolve_model_path(config.model.path)

    async def sample(spec: RolloutSpec) -> tuple[list[Group], TokenCodec]:
        plan = make_plan(config, size=config.rollout.group_size)
        return await run_groups(items, spec, plan, seed=config.seed, label="rollout"), spec.codec

    groups, codec = with_model(config, task, path, sample)
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    path_out = out / "rollouts.jsonl.gz"
    write_records(path_out, (trajectory_record(t, codec, step=0, split=config.eval.split) for t in everyone))
    for group in groups:
        _show(group.trajectories[0], codec.decode(group.trajectories[0].ledger.input_ids))
    metrics = rollout_metrics(groups)
    for name in ("reward/mean", "reward/em", "rollout/searches_mean", "rollout/failed"):
        if name in metrics:
            print(f"{name} {metrics[name]:.3f}")
    print(f"{len(everyone)} trajectories: {path_out}")


def _show(trajectory: Trajectory, text: str) -> None:
    ledger = trajectory.ledger
    counts = ", ".join(f"{author.name.lower()} {ledger.count(author)}" for author in Author)
    reward = "none" if trajectory.score is None else f"{trajectory.score.value:g}"
    print(f"\n--- {trajectory.item.id}: {trajectory.stop_reason}, reward {reward}, tokens: {counts}")
    print(text)
    print(f"gold: {' | '.join(trajectory.item.gold)}")

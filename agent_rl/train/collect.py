"""The rollouts of one step, with the group filter's refills (DAPO's dynamic sampling)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_rl.config.schema import RunConfig
from agent_rl.rollout.assemble import make_plan
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.groups import Group, run_groups
from agent_rl.rollout.statistics import is_uniform, rollout_metrics
from agent_rl.train.console import progress
from agent_rl.train.order import ItemOrder


async def collect_groups(
    config: RunConfig, spec: RolloutSpec, order: ItemOrder, step: int, log: Callable[[str], None]
) -> tuple[list[Group], dict[str, float]]:
    """All groups of step ``step`` (from 1) and their metrics.

    With ``group_filter.kind=drop_uniform`` a group whose rewards are all equal is not trained on
    (``kept`` = False), and new questions are asked in its place, at most ``max_refills`` times. Which questions
    follows from the seed, the step and the refill alone, so that a resumed run asks the same. Where refills do
    not suffice, the step goes on with fewer groups.
    """
    wanted, settings = config.train.prompts_per_step, config.algo.group_filter
    refills = settings.max_refills if settings.kind == "drop_uniform" else 0
    plan = make_plan(config, size=config.rollout.group_size)
    groups: list[Group] = []
    filtered = rounds = 0
    for refill in range(refills + 1):
        missing = wanted - sum(group.kept for group in groups)
        if refill == 0:
            items, label = order.take((step - 1) * wanted, wanted), f"train/{step}"
        elif missing:
            start = ((step - 1) * refills + refill - 1) * wanted
            items, label = order.take(start, missing, label="refill"), f"train/{step}/refill{refill}"
        else:
            break
        rounds += 1
        title = f"step {step} rollouts" + (f", refill {refill} of {refills}" if refill else "")
        with progress(title, len(items) * plan.size, "trajectories", log) as advance:
            fresh = await run_groups(items, spec, plan, seed=config.seed, label=label, on_done=advance)
        if settings.kind == "drop_uniform":
            filtered += drop_uniform(fresh)
        groups += fresh
    found = rollout_metrics(groups)
    if settings.kind == "drop_uniform":
        found["rollout/dropped_groups"] -= filtered
        found["filter/uniform_groups_dropped"] = float(filtered)
        found["filter/refill_rounds"] = float(rounds - 1)
        found["filter/groups_missing"] = float(max(wanted - sum(group.kept for group in groups), 0))
    return groups, found


def drop_uniform(groups: Sequence[Group]) -> int:
    """Keep no group whose rewards are all equal; how many that are."""
    dropped = [group for group in groups if group.kept and is_uniform(group)]
    for group in dropped:
        group.kept = False
    return len(dropped)


def too_many_failures(step: int, groups: Sequence[Group], max_failed_fraction: float) -> str | None:
    """What to say where more than ``max_failed_fraction`` of a step's rollouts were not scored, else None."""
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    broken = [trajectory for trajectory in everyone if not trajectory.scored]
    failed = len(broken) / len(everyone)
    if failed <= max_failed_fraction:
        return None
    reason = broken[0].failure.message if broken[0].failure else str(broken[0].stop_reason)
    return (
        f"step {step}: {failed:.0%} of the rollouts were broken (rollout.max_failed_fraction="
        f"{max_failed_fraction:g}); first: {reason}"
    )

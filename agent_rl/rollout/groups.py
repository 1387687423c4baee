"""Groups of trajectories: many in flight over one sampler, broken ones run again or dropped, never scored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_rl.rollout.engine import RolloutSpec, derive_seed, run_rollout
from agent_rl.rollout.trajectory import StopReason, Trajectory
from tasks.base import TaskItem


@dataclass(slots=True)
class Group:
    """The trajectories of one question. ``kept`` is False where too few members were scored to compare."""

    id: str
    item: TaskItem
    trajectories: list[Trajectory] = field(default_factory=list)
    kept: bool = True

    @property
    def scored(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.trajectories if trajectory.scored]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How groups are run: ``size`` members each, broken ones again up to ``retries`` times."""

    size: int
    min_group: int = 2
    retries: int = 1
    max_in_flight: int = 128


async def run_member(
    item: TaskItem, spec: RolloutSpec, *, seed: int, group: str, sample: int, retries: int
) -> Trajectory:
    """One member of a group, run again up to ``retries`` times where infrastructure broke it.

    Its draws follow from ``seed``, ``group`` and ``sample`` alone, so that a second attempt draws what the first would
    have drawn.
    """
    for attempt in range(1, retries + 2):
        trajectory = await run_rollout(
            item,
            spec,
            seed=derive_seed(seed, group, sample),
            session=f"{group}/{sample}/{attempt}",
            group=group,
            sample=sample,
        )
        trajectory.attempts = attempt
        if trajectory.scored or trajectory.stop_reason is StopReason.PROMPT_TOO_LONG:
            break
    return trajectory


async def run_groups(
    items: Sequence[TaskItem],
    spec: RolloutSpec,
    plan: GroupPlan,
    *,
    seed: int,
    label: str,
    places: Sequence[int] | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Group]:
    """Run ``plan.size`` trajectories for each item; groups in the order of ``items``.

    A group is named after ``label``, the item's place (in ``items``, or as ``places`` says) and its id.
    ``on_done`` is called once for each finished trajectory (its last attempt).
    What a rollout raises (it is no InfrastructureError then) ends them all and is raised here.
    """
    slots = asyncio.Semaphore(plan.max_in_flight)

    async def one(place: int, item: TaskItem, sample: int) -> Trajectory:
        group = f"{label}/{place}/{item.id}"
        async with slots:
            trajectory = await run_member(item, spec, seed=seed, group=group, sample=sample, retries=plan.retries)
        if on_done is not None:
            on_done(trajectory)
        return trajectory

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                [tasks.create_task(one(place, item, sample)) for sample in range(plan.size)]
                for place, item in zip(places or range(len(items)), items, strict=True)
            ]
    except ExceptionGroup as several:
        # What escapes a rollout (a refused token, a bug) escapes many at once: one of them says it.
        raise several.exceptions[0] from several
    groups = []
    for item, members in zip(items, running, strict=True):
        trajectories = [member.result() for member in members]
        group = Group(trajectories[0].group, item, trajectories)
        group.kept = len(group.scored) >= plan.min_group
        groups.append(group)
    return groups

"""From the groups of a step to its optimiser updates."""

from __future__ import annotations

from collections.abc import Sequence

from agent_rl.algo.objective import Objective
from agent_rl.config.schema import TrainConfig
from agent_rl.rollout.groups import Group
from agent_rl.train.batch import TrainSequence
from agent_rl.train.policy import Policy, learning_rate
from agent_rl.train.update import Mismatch, UpdateSettings, store_old_logprobs, update


def training_sequences(groups: Sequence[Group], objective: Objective) -> dict[str, TrainSequence | None]:
    """By session, what is trained on; None for trajectories that are not (unscored, or of a dropped group)."""
    members = [(place, trajectory) for place, group in enumerate(groups) for trajectory in group.trajectories]
    rewards = [
        trajectory.score.value if trajectory.score is not None and groups[place].kept else None
        for place, trajectory in members
    ]
    advantages = objective.advantages(rewards, [place for place, _ in members]).tolist()
    made: dict[str, TrainSequence | None] = {}
    for (place, trajectory), reward, advantage in zip(members, rewards, advantages, strict=True):
        ledger = trajectory.ledger
        made[trajectory.session] = (
            None
            if reward is None
            else TrainSequence(ledger.input_ids, ledger.loss_mask, ledger.logprobs, advantage, group=place)
        )
    return made


def step_updates(
    policy: Policy,
    objective: Objective,
    sequences: Sequence[TrainSequence],
    config: TrainConfig,
    settings: UpdateSettings,
    *,
    step: int,
) -> dict[str, float]:
    """``updates_per_rollout`` optimiser steps, each on whole groups; metrics are their means.

    ``step`` counts from 1 and, with ``config.steps``, places the updates on the learning-rate schedule.
    """
    count = config.updates_per_rollout
    if not sequences:
        return {"objective/empty_batch": 1.0}
    if count > 1:
        store_old_logprobs(policy, sequences, settings)
    places = sorted({sequence.group for sequence in sequences})
    mismatch = Mismatch()
    collected: list[dict[str, float]] = []
    for index in range(count):
        chosen = set(places[index::count])
        batch = [sequence for sequence in sequences if sequence.group in chosen]
        if not batch:
            continue
        rate = learning_rate(config.optim, (step - 1) * count + index, config.steps * count)
        first = mismatch if index == 0 else None
        collected.append(update(policy, objective, batch, settings, lr=rate, mismatch=first))
    names = sorted({name for metrics in collected for name in metrics})
    found = {name: sum(metrics.get(name, 0.0) for metrics in collected) / len(collected) for name in names}
    found["time/update_s"] = sum(metrics["time/update_s"] for metrics in collected)
    return found | mismatch.metrics()

"""From the groups of a step to its optimiser updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from agent_rl.algo.filters import select_tokens
from agent_rl.algo.objective import Objective
from agent_rl.algo.weights import draw_weights
from agent_rl.config.schema import TrainConfig
from agent_rl.rollout.codec import TokenCodec
from agent_rl.rollout.engine import derive_seed
from agent_rl.rollout.groups import Group
from agent_rl.rollout.record import trajectory_record
from agent_rl.rollout.trajectory import Trajectory
from agent_rl.train.batch import TrainSequence
from agent_rl.train.policy import Policy, learning_rate
from agent_rl.train.update import Mismatch, UpdateSettings, store_old_pass, update, worked_on


def training_sequences(
    groups: Sequence[Group], objective: Objective, *, seed: int
) -> tuple[dict[str, TrainSequence | None], dict[str, float]]:
    """By session, what is trained on, and metrics of the reward's shaping.

    None for trajectories that are not trained on (unscored, or of a dropped group). ``seed`` is the run's: random
    token weights follow from it and the session, so that they belong to the rollout and not to an update.
    """
    members = [(place, trajectory) for place, group in enumerate(groups) for trajectory in group.trajectories]
    rewards: list[float | None] = []
    shaping: list[float] = []
    for place, trajectory in members:
        if trajectory.score is None or not groups[place].kept:
            rewards.append(None)
            continue
        shaped = objective.shaped_reward(trajectory.score.value, trajectory.ledger.response_length())
        shaping.append(shaped - trajectory.score.value)
        rewards.append(shaped)
    advantages = objective.advantages(rewards, [place for place, _ in members]).tolist()
    made = {
        trajectory.session: None if reward is None else _sequence(trajectory, objective, advantage, place, seed)
        for (place, trajectory), reward, advantage in zip(members, rewards, advantages, strict=True)
    }
    if objective.config.overlong is None or not shaping:
        return made, {}
    return made, {
        "reward/overlong_mean": sum(shaping) / len(shaping),
        "reward/overlong_fraction": sum(value < 0 for value in shaping) / len(shaping),
    }


def step_records(
    groups: Sequence[Group], sequences: Mapping[str, TrainSequence | None], codec: TokenCodec, *, step: int
) -> Iterator[dict[str, Any]]:
    """Every trajectory of a step as it is stored, with its advantage and weights where it was trained on."""
    for group in groups:
        for trajectory in group.trajectories:
            sequence = sequences[trajectory.session]
            yield trajectory_record(
                trajectory,
                codec,
                step=step,
                split="train",
                advantage=None if sequence is None else sequence.advantage,
                weights=None if sequence is None else sequence.weights,
                trainer_logprobs=None if sequence is None else sequence.trainer_logprobs,
            )


def _sequence(trajectory: Trajectory, objective: Objective, advantage: float, group: int, seed: int) -> TrainSequence:
    ledger = trajectory.ledger
    made = TrainSequence(ledger.input_ids, ledger.loss_mask, ledger.logprobs, advantage, group)
    if objective.needs_drawn_weights:
        drawn = draw_weights(made.trained, derive_seed(seed, "token_weight", trajectory.session))
        made.drawn_weights = torch.tensor(drawn)
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
    """``updates_per_rollout`` optimiser batches of whole groups, each with the objective's passes.

    Metrics are means over the updates (extremes are extremes, times and ``skipped_updates`` sums). ``step`` counts
    from 1 and, with ``config.steps``, places the updates on the learning-rate schedule.
    """
    count = config.updates_per_rollout
    if not sequences:
        return {"objective/empty_batch": 1.0, "objective/skipped_updates": float(count)}
    places = sorted({sequence.group for sequence in sequences})
    batches = [_of_groups(sequences, places[index::count]) for index in range(count)]
    # The first update needs no pass of its own: its policy is still the one before the first update.
    later = [sequence for batch in batches[1:] for sequence in batch]
    if objective.needs_old_pass:
        store_old_pass(policy, sequences, settings)
    elif later:
        store_old_pass(policy, [later[index] for index in worked_on(objective, later, settings)], settings)
    mismatch = Mismatch()
    collected: list[dict[str, float]] = []
    for index, batch in enumerate(batches):
        if not batch:
            continue
        rate = learning_rate(config.optim, (step - 1) * count + index, config.steps * count)
        for name in objective.passes:
            if objective.needs_old_pass:
                _select(objective, name, batch)
            first = mismatch if not collected else None
            collected.append(update(policy, objective, batch, settings, lr=rate, mismatch=first))
    found = _over_updates(collected)
    for name in ("time/update_s", "time/diagnostics_s", "objective/skipped_updates"):
        found[name] = sum(metrics[name] for metrics in collected)
    for name, metrics in zip(objective.passes, collected, strict=False):
        if objective.needs_old_pass and len(objective.passes) > 1:
            found[f"filter/{name}_fraction"] = metrics.get("filter/selected_fraction", 0.0)
    return found | mismatch.metrics()


def _of_groups(sequences: Sequence[TrainSequence], groups: Sequence[int]) -> list[TrainSequence]:
    chosen = set(groups)
    return [sequence for sequence in sequences if sequence.group in chosen]


def _over_updates(collected: Sequence[dict[str, float]]) -> dict[str, float]:
    """An update that had nothing to work on lacks metrics: it takes no part in their means."""
    found = {}
    for name in sorted({name for metrics in collected for name in metrics}):
        values = [metrics[name] for metrics in collected if name in metrics]
        if name.endswith(("_max", "/max")):
            found[name] = max(values)
        elif name.endswith("/min"):
            found[name] = min(values)
        else:
            found[name] = sum(values) / len(values)
    return found


def _select(objective: Objective, name: str, batch: Sequence[TrainSequence]) -> None:
    """Let the token filter look at the whole optimiser batch, before it is cut into micro-batches."""
    logp = torch.cat([sequence.old_logprobs for sequence in batch if sequence.old_logprobs is not None])
    entropy = torch.cat([sequence.old_entropy for sequence in batch if sequence.old_entropy is not None])
    selected = select_tokens(objective.config.token_filter, name, logp, entropy)
    for sequence, piece in zip(batch, selected.split([sequence.trained for sequence in batch]), strict=True):
        sequence.selected = piece

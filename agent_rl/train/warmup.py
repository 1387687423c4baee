"""Supervised warm-up: oracle trajectories made in the real environment, trained on policy tokens only."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import torch

from agent_rl.errors import TrainingError
from agent_rl.rollout.engine import RolloutSpec, derive_seed, run_rollout
from agent_rl.rollout.trajectory import Trajectory
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.train.batch import TrainSequence, make_micro_batches
from agent_rl.train.logprobs import token_logprobs
from agent_rl.train.policy import Policy
from tasks.base import TaskItem


class OracleSampler:
    """A sampler that says what the task's oracle would: the rollout engine does the rest, real tools included."""

    def __init__(self, spec: RolloutSpec) -> None:
        self._spec = spec
        self._turns: dict[str, list[str]] = {}

    def script(self, session: str, item: TaskItem) -> None:
        self._turns[session] = [turn.text for turn in self._spec.task.oracle(item)]

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        text = self._turns[session].pop(0)
        written = self._spec.codec.encode(text)
        stop = next((stop for stop in params.stop_strings if text.endswith(stop)), None)
        if stop is None:  # a turn that no stop string ends is ended by the policy itself
            written = [*written, self._spec.codec.eos_id]
        return SampledTurn(written, [0.0] * len(written), "stop", stop, version=-1)

    async def end_session(self, session: str) -> None:
        self._turns.pop(session, None)


async def oracle_trajectories(
    items: Sequence[TaskItem], spec: RolloutSpec, *, on_done: Callable[[Trajectory], None] | None = None
) -> list[Trajectory]:
    """Oracle trajectories of ``items`` that score the maximum. ``spec.sampler`` must be an OracleSampler.

    Raises TrainingError where infrastructure broke one, or an oracle does not score the maximum: a warm-up on
    wrong demonstrations would teach them.
    """
    oracle = spec.sampler
    assert isinstance(oracle, OracleSampler)

    async def one(index: int, item: TaskItem) -> Trajectory:
        session = f"oracle/{index}"
        oracle.script(session, item)
        trajectory = await run_rollout(item, spec, seed=0, session=session)
        if trajectory.failure is not None:
            raise TrainingError(
                f"the demonstration of {item.id} failed ({trajectory.failure.boundary}): {trajectory.failure.message}"
            )
        if trajectory.score is None or trajectory.score.value < spec.task.max_score:
            raise TrainingError(
                f"the demonstration of {item.id} ended with {trajectory.stop_reason} and scores "
                f"{trajectory.score.value if trajectory.score else None}, not {spec.task.max_score}; "
                "are rollout.max_turns or the token limits too small for it?"
            )
        if on_done is not None:
            on_done(trajectory)
        return trajectory

    return list(await asyncio.gather(*(one(index, item) for index, item in enumerate(items))))


def supervised_epochs(count: int, epochs: int, batch_size: int, seed: int) -> list[list[int]]:
    """Indices of each optimiser batch: every demonstration once an epoch, in a seeded order."""
    batches = []
    for epoch in range(epochs):
        order = list(range(count))
        random.Random(derive_seed(seed, "warmup", epoch)).shuffle(order)
        batches += [order[start : start + batch_size] for start in range(0, count, batch_size)]
    return batches


def supervised_step(
    policy: Policy,
    trajectories: Sequence[Trajectory],
    *,
    lr: float,
    max_batch_tokens: int,
    chunk_tokens: int,
) -> dict[str, float]:
    """One AdamW step on the mean negative log-likelihood of the policy tokens, at temperature 1."""
    sequences = [
        TrainSequence(t.ledger.input_ids, t.ledger.loss_mask, t.ledger.logprobs, advantage=1.0, group=index)
        for index, t in enumerate(trajectories)
    ]
    tokens = sum(sequence.trained for sequence in sequences)
    loss = 0.0
    policy.model.train()
    for batch in make_micro_batches(sequences, max_batch_tokens, policy.device):
        found = token_logprobs(policy.model, batch, temperature=1.0, chunk_tokens=chunk_tokens, decoder=policy.decoder)
        part = -found.logp.sum() / tokens
        if not torch.isfinite(part):
            raise TrainingError(f"the warm-up loss is {float(part)}: the step was not taken")
        part.backward()
        loss += float(part.detach())
    policy.model.eval()
    return {"warmup/loss": loss, "warmup/grad_norm": policy.step(lr), "warmup/lr": lr}

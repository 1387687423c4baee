"""One optimiser update: micro-batches of one optimiser batch, normalised over all of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent_rl.algo.diagnostics import ObjectiveDiagnostics
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import BatchCounts, LossOutput, TokenBatch
from agent_rl.errors import TrainingError
from agent_rl.train.batch import MicroBatch, TrainSequence, make_micro_batches
from agent_rl.train.logprobs import TokenLogprobs, token_logprobs
from agent_rl.train.policy import Policy


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    temperature: float
    max_batch_tokens: int
    logprob_chunk_tokens: int
    drop_uniform_groups: bool


@dataclass(slots=True)
class Mismatch:
    """|log-probability of the sampler - of the trainer| over the trained tokens of a step."""

    differences: list[Tensor] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        if not self.differences:
            return {}
        difference = torch.cat(self.differences).double()
        return {
            "mismatch/mean_abs_logp": float(difference.abs().mean()),
            "mismatch/max_abs_logp": float(difference.abs().max()),
            # A short run of tokens may differ much; the mean ratio says whether there is a bias.
            "mismatch/mean_ratio": float(difference.exp().mean()),
        }


def count_batch(sequences: Sequence[TrainSequence]) -> BatchCounts:
    """Counts of an optimiser batch; a sequence's index is its place, its group ``TrainSequence.group``."""
    trained = torch.tensor([sequence.trained for sequence in sequences], dtype=torch.long)
    places = torch.arange(len(sequences)).repeat_interleave(trained)
    groups = torch.tensor([sequence.group for sequence in sequences], dtype=torch.long).repeat_interleave(trained)
    return BatchCounts.of(torch.ones(len(places), dtype=torch.bool), places, groups)


def worked_on(objective: Objective, sequences: Sequence[TrainSequence], settings: UpdateSettings) -> list[int]:
    """Indices of the sequences that an update must run through the model."""
    # Without a KL term, advantage 0 is gradient 0 exactly; the counts of the batch still hold those tokens.
    skip = settings.drop_uniform_groups and not objective.needs_reference
    return [
        index for index, sequence in enumerate(sequences) if sequence.trained and not (skip and sequence.advantage == 0)
    ]


def store_old_pass(policy: Policy, sequences: Sequence[TrainSequence], settings: UpdateSettings) -> None:
    """Log-probabilities and entropies of the policy before the first update, from one forward pass."""
    with torch.no_grad():
        for batch in make_micro_batches(sequences, settings.max_batch_tokens, policy.device):
            found = _logprobs(policy, batch, settings)
            columns = (batch.sequences, batch.by_sequence(found.logp), batch.by_sequence(found.entropy))
            for index, logp, entropy in zip(*columns, strict=True):
                sequences[index].old_logprobs, sequences[index].old_entropy = logp, entropy


def update(
    policy: Policy,
    objective: Objective,
    sequences: Sequence[TrainSequence],
    settings: UpdateSettings,
    *,
    lr: float,
    mismatch: Mismatch | None = None,
) -> dict[str, float]:
    """One AdamW step on ``sequences``; returns metrics.

    The loss is a sum over trained tokens divided by counts of the whole batch, so the result does not depend on
    how it is cut into micro-batches. ``mismatch`` is filled on the first update after a rollout, while the
    policy is still the one that sampled. Raises TrainingError for a loss or gradient that is not finite.
    """
    began = time.perf_counter()
    found = accumulate(policy, objective, sequences, settings, mismatch=mismatch)
    norm = policy.step(lr)
    return found | {
        "objective/grad_norm": norm,
        "objective/lr": lr,
        "objective/skipped_updates": float(norm == 0),  # no gradient at all: AdamW is not asked to move
        "time/update_s": time.perf_counter() - began,
    }


def accumulate(
    policy: Policy,
    objective: Objective,
    sequences: Sequence[TrainSequence],
    settings: UpdateSettings,
    *,
    mismatch: Mismatch | None = None,
) -> dict[str, float]:
    """The gradient part of ``update``: sums the gradients of ``sequences`` into the policy's."""
    counts = count_batch(sequences)
    diagnostics = ObjectiveDiagnostics(objective)
    diagnostics_s = 0.0
    worked = worked_on(objective, sequences, settings)
    chosen = [sequences[index] for index in worked]
    loss = 0.0
    policy.model.train()
    for batch in make_micro_batches(chosen, settings.max_batch_tokens, policy.device):
        found = _logprobs(policy, batch, settings)
        tokens = _token_batch(policy, objective, chosen, worked, batch, found, counts, settings)
        out = objective.loss(tokens)
        if not torch.isfinite(out.loss):
            raise TrainingError(f"the loss is {float(out.loss.detach())}: the step was not taken")
        out.loss.backward()
        loss += float(out.loss.detach())
        since = time.perf_counter()
        diagnostics.add(tokens, out, found.entropy)
        diagnostics_s += time.perf_counter() - since
        _record(chosen, batch, tokens, out, mismatch)
    policy.model.eval()
    since = time.perf_counter()
    seen = diagnostics.metrics()
    diagnostics_s += time.perf_counter() - since
    return {
        "objective/loss": loss,
        "objective/empty_batch": float(counts.tokens == 0),
        "objective/trained_tokens": float(counts.tokens),
        "objective/forward_sequences": float(len(chosen)),
        "time/diagnostics_s": diagnostics_s,
        **seen,
    }


def _logprobs(policy: Policy, batch: MicroBatch, settings: UpdateSettings) -> TokenLogprobs:
    return token_logprobs(
        policy.model,
        batch,
        temperature=settings.temperature,
        chunk_tokens=settings.logprob_chunk_tokens,
        decoder=policy.decoder,
    )


def _token_batch(
    policy: Policy,
    objective: Objective,
    chosen: Sequence[TrainSequence],
    worked: Sequence[int],
    batch: MicroBatch,
    found: TokenLogprobs,
    counts: BatchCounts,
    settings: UpdateSettings,
) -> TokenBatch:
    members = [chosen[index] for index in batch.sequences]
    device = found.logp.device

    def per_token(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)[batch.rows]

    def stored(name: str) -> Tensor | None:
        columns = [getattr(member, name) for member in members]
        return None if any(column is None for column in columns) else torch.cat(columns).to(device)

    logp_old = stored("old_logprobs")
    if logp_old is None:
        logp_old = found.logp.detach()  # strictly on-policy: the ratio is 1 by definition
    if objective.needs_reference and any(member.reference_logprobs is None for member in members):
        _store_reference(policy, members, batch, settings)
    return TokenBatch(
        logp=found.logp,
        logp_old=logp_old,
        logp_ref=stored("reference_logprobs") if objective.needs_reference else None,
        logit=found.logit,
        logp_rollout=_sampler_logprobs(members, batch).to(device),
        drawn_weight=stored("drawn_weights"),
        selected=stored("selected"),
        advantage=per_token([member.advantage for member in members], torch.float32),
        mask=torch.ones_like(found.logp, dtype=torch.bool),
        sequence=per_token([worked[index] for index in batch.sequences], torch.long),
        group=per_token([member.group for member in members], torch.long),
        counts=counts,
    )


def _store_reference(
    policy: Policy, members: Sequence[TrainSequence], batch: MicroBatch, settings: UpdateSettings
) -> None:
    """Ask the frozen reference once for each sequence, however many updates it is in."""
    assert policy.reference is not None, "the reference must be frozen before the first update"
    with torch.no_grad(), policy.reference_mode():
        logp = token_logprobs(
            policy.reference, batch, temperature=settings.temperature, chunk_tokens=settings.logprob_chunk_tokens
        ).logp
    for member, values in zip(members, batch.by_sequence(logp), strict=True):
        member.reference_logprobs = values


def _sampler_logprobs(members: Sequence[TrainSequence], batch: MicroBatch) -> Tensor:
    pairs = zip(batch.rows.tolist(), batch.places.tolist(), strict=True)
    return torch.tensor([members[row].sampler_logprobs[place] for row, place in pairs])


def _record(
    chosen: Sequence[TrainSequence],
    batch: MicroBatch,
    tokens: TokenBatch,
    out: LossOutput,
    mismatch: Mismatch | None,
) -> None:
    """Write the weights onto the sequences and note the sampler's distance from the trainer."""
    weights, logprobs = out.weight.tolist(), tokens.logp.detach().tolist()
    rows, places = batch.rows.tolist(), batch.places.tolist()
    for weight, logprob, row, place in zip(weights, logprobs, rows, places, strict=True):
        sequence = chosen[batch.sequences[row]]
        if sequence.weights is None:
            sequence.weights = [None] * len(sequence.ids)
        sequence.weights[place] = weight
        if mismatch is not None:
            if sequence.trainer_logprobs is None:
                sequence.trainer_logprobs = [None] * len(sequence.ids)
            sequence.trainer_logprobs[place] = logprob
    if mismatch is not None:
        assert tokens.logp_rollout is not None
        mismatch.differences.append((tokens.logp.detach() - tokens.logp_rollout).cpu())

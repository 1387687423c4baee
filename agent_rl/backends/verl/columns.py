"""What the driver writes beside each row for the loss: advantages, counts of the optimiser batch, filters, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from agent_rl.algo.filters import select_tokens
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import TokenBatch
from agent_rl.train.batch import TrainSequence
from agent_rl.train.update import count_batch

COUNTS, SELECTED, DRAWN_WEIGHT = "agent_rl_counts", "agent_rl_selected", "agent_rl_drawn_weight"


class Count(IntEnum):
    """Columns of ``COUNTS`` [B, 5], float64. ``RATE`` is the learning rate of the row's update."""

    TOKENS = 0
    SEQUENCES = 1
    GROUPS = 2
    TOKENS_OF_GROUP = 3
    RATE = 4


@dataclass(slots=True)
class Row:
    """One row of verl's batch. ``sequence`` is None where it is not trained on: failed, of a dropped group, padding.

    ``mask``, ``old_logprobs`` and ``old_entropy`` [R] over the row's response tokens; the mask is verl's own, as the
    agent loop sent it. ``update`` is the optimiser batch (from 0) that the row falls into.
    """

    mask: Tensor
    old_logprobs: Tensor
    old_entropy: Tensor
    sequence: TrainSequence | None
    update: int = 0


def row_columns(rows: Sequence[Row], objective: Objective, rates: Sequence[float]) -> dict[str, list[Tensor]]:
    """By name, one tensor a row: [R] for each of verl's and ours, [5] for ``COUNTS``.

    A row that is not trained on gets mask 0 and advantage 0. Raises AssertionError where a row's mask is not that of
    its trajectory's ledger.
    """
    found: dict[str, list[Tensor]] = {"response_mask": [], "advantages": [], COUNTS: []}
    counts = _counts(rows, rates)
    for row, count in zip(rows, counts, strict=True):
        trained = row.sequence is not None
        if row.sequence is not None:
            tail = row.sequence.mask[len(row.sequence.mask) - len(row.mask) :]
            assert tail == row.mask.tolist(), "verl's mask of a row is not the ledger's"
            assert sum(tail) == row.sequence.trained, "trained tokens lie outside the response"
        mask = row.mask if trained else torch.zeros_like(row.mask)
        advantage = row.sequence.advantage if row.sequence is not None else 0.0
        found["response_mask"].append(mask)
        found["advantages"].append(mask.float() * advantage)
        found[COUNTS].append(count)
    if objective.needs_old_pass:
        found[SELECTED] = _selected(rows, objective)
    if objective.needs_drawn_weights:
        found[DRAWN_WEIGHT] = [_drawn(row) for row in rows]
    # verl counts the tokens of this one too.
    found["loss_mask"] = found["response_mask"]
    return found


def _counts(rows: Sequence[Row], rates: Sequence[float]) -> list[Tensor]:
    made: list[Tensor] = [torch.zeros(len(Count), dtype=torch.float64) for _ in rows]
    for update, rate in enumerate(rates):
        places = [place for place, row in enumerate(rows) if row.update == update]
        sequences = [row.sequence for row in (rows[place] for place in places) if row.sequence is not None]
        whole = count_batch(sequences)
        for place in places:
            sequence, count = rows[place].sequence, made[place]
            count[: Count.TOKENS_OF_GROUP] = torch.tensor([whole.tokens, whole.sequences, whole.groups])
            count[Count.RATE] = rate
            if sequence is not None and sequence.trained:
                count[Count.TOKENS_OF_GROUP] = int(whole.tokens_of_group[sequence.group])
    return made


def _selected(rows: Sequence[Row], objective: Objective) -> list[Tensor]:
    """The token filter looks at all trained tokens of an optimiser batch."""
    (name,) = objective.passes
    made = [torch.zeros_like(row.mask, dtype=torch.bool) for row in rows]
    for update in sorted({row.update for row in rows}):
        chosen = [place for place, row in enumerate(rows) if row.update == update and row.sequence is not None]
        if not chosen:
            continue
        masks = [rows[place].mask.bool() for place in chosen]
        logp = torch.cat([rows[place].old_logprobs[mask] for place, mask in zip(chosen, masks, strict=True)])
        entropy = torch.cat([rows[place].old_entropy[mask] for place, mask in zip(chosen, masks, strict=True)])
        picked = select_tokens(objective.config.token_filter, name, logp, entropy)
        for place, mask, piece in zip(chosen, masks, picked.split([int(m.sum()) for m in masks]), strict=True):
            made[place][mask] = piece
    return made


def _drawn(row: Row) -> Tensor:
    """The weights that were drawn for the trained tokens, at their places in the response; 1 elsewhere."""
    made = torch.ones(len(row.mask))
    if row.sequence is not None and row.sequence.drawn_weights is not None:
        made[row.mask.bool()] = row.sequence.drawn_weights.float()
    return made


def record_weights(rows: Sequence[Row], objective: Objective) -> None:
    """Write w onto the sequences, for the record: under the policy that the updates began with."""
    for row in rows:
        sequence = row.sequence
        if sequence is None or not sequence.trained:
            continue
        logp = row.old_logprobs[row.mask.bool()].float()
        zeros = torch.zeros(len(logp), dtype=torch.long)
        ones = torch.ones(len(logp), dtype=torch.bool)
        batch = TokenBatch(
            logp, logp, logp, ones, zeros, zeros, count_batch([sequence]), drawn_weight=sequence.drawn_weights
        )
        weights = iter(objective.weights(batch).tolist())
        sequence.weights = [next(weights) if flag else None for flag in sequence.mask]

"""From trajectories to micro-batches: sequences sorted by length and cut by a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class TrainSequence:
    """One trajectory as it is trained on. Lists have length T; ``mask`` is 1 on trained tokens.

    Tensors have one entry a trained token: ``old_logprobs`` and ``old_entropy`` of the policy before the first
    update, where a pass over the batch was needed; ``selected`` bool, the token filter's choice for this update;
    ``drawn_weights`` of the rollout. ``weights`` (the objective's w) and ``trainer_logprobs`` (of the first update
    after the rollout) are filled by the update, None on untrained tokens, for the record.
    """

    ids: list[int]
    mask: list[int]
    sampler_logprobs: list[float]
    advantage: float
    group: int
    old_logprobs: Tensor | None = None
    old_entropy: Tensor | None = None
    selected: Tensor | None = None
    drawn_weights: Tensor | None = None
    weights: list[float | None] | None = None
    trainer_logprobs: list[float | None] | None = None

    @property
    def trained(self) -> int:
        return sum(self.mask)


@dataclass(slots=True)
class MicroBatch:
    """Right-padded sequences with the positions that are trained on, flattened.

    ``input_ids`` [B, T]. For each of the N trained tokens: ``rows`` [N] and ``columns`` [N] of the hidden state
    that predicts it, ``targets`` [N] its id, ``places`` [N] its index within its sequence.
    """

    sequences: list[int]
    input_ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    places: Tensor


def cut_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices in batches of at most ``max_tokens`` padded tokens, longest first; every index exactly once.

    A single sequence longer than the budget is a batch of its own: nothing is dropped or cut.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # Sorted, so the first of a batch is its longest: padding is to that length.
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def make_micro_batches(sequences: Sequence[TrainSequence], max_tokens: int, device: torch.device) -> list[MicroBatch]:
    """Micro-batches over all sequences that have a trained token."""
    chosen = [index for index, sequence in enumerate(sequences) if sequence.trained]
    lengths = [len(sequences[index].ids) for index in chosen]
    made = []
    for batch in cut_by_tokens(lengths, max_tokens):
        members = [chosen[index] for index in batch]
        width = max(len(sequences[index].ids) for index in members)
        input_ids = torch.zeros(len(members), width, dtype=torch.long)
        rows, places = [], []
        for row, index in enumerate(members):
            sequence = sequences[index]
            input_ids[row, : len(sequence.ids)] = torch.tensor(sequence.ids)
            trained = [place for place, flag in enumerate(sequence.mask) if flag]
            assert trained[0] > 0, "the first token has nothing before it that could predict it"
            rows += [row] * len(trained)
            places += trained
        rows_N, places_N = torch.tensor(rows), torch.tensor(places)
        made.append(
            MicroBatch(
                sequences=members,
                input_ids=input_ids.to(device),
                rows=rows_N.to(device),
                columns=(places_N - 1).to(device),
                targets=input_ids[rows_N, places_N].to(device),
                places=places_N,
            )
        )
    return made

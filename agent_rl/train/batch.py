"""From trajectories to micro-batches: sequences packed without padding, cut by a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.train.packed_attention import Span


@dataclass(slots=True)
class TrainSequence:
    """One trajectory as it is trained on. Lists have length T; ``mask`` is 1 on trained tokens.

    Tensors have one entry a trained token: ``old_logprobs`` and ``old_entropy`` of the policy before the first
    update, where a pass over the batch was needed; ``reference_logprobs`` once the reference has been asked;
    ``selected`` bool, the token filter's choice for this update; ``drawn_weights`` of the rollout. ``weights`` (the
    objective's w) and ``trainer_logprobs`` (of the first update after the rollout) are filled by the update, None
    on untrained tokens, for the record.
    """

    ids: list[int]
    mask: list[int]
    sampler_logprobs: list[float]
    advantage: float
    group: int
    old_logprobs: Tensor | None = None
    old_entropy: Tensor | None = None
    reference_logprobs: Tensor | None = None
    selected: Tensor | None = None
    drawn_weights: Tensor | None = None
    weights: list[float | None] | None = None
    trainer_logprobs: list[float | None] | None = None

    @property
    def trained(self) -> int:
        return sum(self.mask)


@dataclass(slots=True)
class MicroBatch:
    """Sequences in one packed row, with the positions that are trained on.

    ``input_ids`` and ``position_ids`` [T]; ``spans`` says who sees whom. For each of the N trained tokens:
    ``rows`` [N] its sequence's place in ``sequences``, ``predictors`` [N] the place in the row of the hidden state
    that predicts it, ``targets`` [N] its id, ``places`` [N] its index within its sequence.
    """

    sequences: list[int]
    spans: list[Span]
    input_ids: Tensor
    position_ids: Tensor
    rows: Tensor
    predictors: Tensor
    targets: Tensor
    places: Tensor

    def by_sequence(self, values: Tensor) -> tuple[Tensor, ...]:
        """``values`` [N] cut into those of each sequence, on the CPU."""
        return values.cpu().split(self.rows.bincount().tolist())


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a sequence adds to a row: its first ``prefix`` tokens are shared with its group, the rest is its own up
    to the last token that predicts a trained one."""

    index: int
    group: int
    prefix: int
    end: int


def make_micro_batches(sequences: Sequence[TrainSequence], max_tokens: int, device: torch.device) -> list[MicroBatch]:
    """Micro-batches over all sequences that have a trained token.

    The prompt that the members of a group share stands once in a row. What follows the last trained token is left
    out: nothing depends on it.
    """
    return [_pack(sequences, pieces, device) for pieces in _cut_by_tokens(_pieces(sequences), max_tokens)]


def _pieces(sequences: Sequence[TrainSequence]) -> list[_Piece]:
    groups: dict[int, list[int]] = {}
    for index, sequence in enumerate(sequences):
        if sequence.trained:
            groups.setdefault(sequence.group, []).append(index)
    made = []
    for group, members in groups.items():
        shared = _shared_prefix([sequences[index] for index in members])
        for index in members:
            mask = sequences[index].mask
            made.append(_Piece(index, group, shared, len(mask) - 1 - mask[::-1].index(1)))
    return made


def _shared_prefix(members: Sequence[TrainSequence]) -> int:
    """How many tokens, none of them trained, all members begin with (0 for one alone)."""
    if len(members) == 1:
        return 0
    limit = min(member.mask.index(1) for member in members)
    first = members[0].ids
    for other in members[1:]:
        limit = next((place for place in range(limit) if other.ids[place] != first[place]), limit)
    return limit


def _cut_by_tokens(pieces: Sequence[_Piece], max_tokens: int) -> list[list[_Piece]]:
    """Pieces in rows of at most ``max_tokens`` tokens, in order; every piece exactly once.

    As few rows as that allows, and as even as those can be: the fullest row decides how much memory an update takes.
    A single sequence longer than the budget is a row of its own: nothing is dropped or cut.
    """
    rows = _fill(pieces, max_tokens)
    least, enough = 1, max_tokens  # a smaller bound never takes fewer rows
    while least < enough:
        bound = (least + enough) // 2
        if len(_fill(pieces, bound)) > len(rows):
            least = bound + 1
        else:
            enough = bound
    return _fill(pieces, enough)


def _fill(pieces: Sequence[_Piece], bound: int) -> list[list[_Piece]]:
    """Rows of at most ``bound`` tokens, each as full as the order allows."""
    rows: list[list[_Piece]] = []
    used = 0
    for piece in pieces:
        shares = bool(rows) and rows[-1][-1].group == piece.group
        cost = piece.end - (piece.prefix if shares else 0)
        if rows and used + cost <= bound:
            rows[-1].append(piece)
            used += cost
        else:
            rows.append([piece])
            used = piece.end
    return rows


def _pack(sequences: Sequence[TrainSequence], pieces: Sequence[_Piece], device: torch.device) -> MicroBatch:
    spans: list[Span] = []
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    predictors: list[int] = []
    targets: list[int] = []
    places: list[int] = []

    def append(sequence: TrainSequence, start: int, end: int, prefix: int | None) -> int:
        """Where the tokens ``start`` to ``end`` of the sequence begin in the row."""
        begin = len(ids)
        if end > start:
            spans.append(Span(end - start, prefix))
            ids.extend(sequence.ids[start:end])
            positions.extend(range(start, end))
        return begin

    group, prefix, prefix_begin = None, None, 0
    for row, piece in enumerate(pieces):
        sequence = sequences[piece.index]
        if piece.prefix and piece.group != group:
            prefix, prefix_begin = len(spans), append(sequence, 0, piece.prefix, None)
        group = piece.group
        begin = append(sequence, piece.prefix, piece.end, prefix if piece.prefix else None)
        trained = [place for place, flag in enumerate(sequence.mask) if flag]
        assert trained[0] > 0, "the first token has nothing before it that could predict it"
        for place in trained:
            before = place - 1
            predictors.append(prefix_begin + before if before < piece.prefix else begin + before - piece.prefix)
        rows += [row] * len(trained)
        targets += [sequence.ids[place] for place in trained]
        places += trained
    return MicroBatch(
        sequences=[piece.index for piece in pieces],
        spans=spans,
        input_ids=torch.tensor(ids, device=device),
        position_ids=torch.tensor(positions, device=device),
        rows=torch.tensor(rows, device=device),
        predictors=torch.tensor(predictors, device=device),
        targets=torch.tensor(targets, device=device),
        places=torch.tensor(places),
    )

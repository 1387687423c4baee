"""Cutting into micro-batches: nothing lost, nothing twice, the budget kept."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.train.batch import TrainSequence, cut_by_tokens, make_micro_batches

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 400), max_size=60), st.integers(1, 900))
def test_every_index_once_and_the_budget_kept(lengths: list[int], budget: int) -> None:
    batches = cut_by_tokens(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= budget or len(batch) == 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 300))
def test_padding_is_little(lengths: list[int], budget: int) -> None:
    """Sorted by length, a batch holds the next lengths: no batch could take the first of the batch after it."""
    batches = cut_by_tokens(lengths, budget)
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * lengths[batch[0]] > budget
        assert lengths[following[0]] <= min(lengths[index] for index in batch)


def test_targets_are_the_masked_tokens_each_predicted_from_the_one_before(make_sequences) -> None:
    sequences = make_sequences(7)
    seen: dict[int, list[int]] = {}
    for batch in make_micro_batches(sequences, 40, CPU):
        assert torch.equal(batch.targets, batch.input_ids[batch.rows, batch.columns + 1])
        assert torch.equal(batch.places, batch.columns + 1)
        for row, place, target in zip(batch.rows.tolist(), batch.places.tolist(), batch.targets.tolist(), strict=True):
            sequence = sequences[batch.sequences[row]]
            assert sequence.mask[place] == 1
            assert sequence.ids[place] == target
            seen.setdefault(batch.sequences[row], []).append(place)
    for index, sequence in enumerate(sequences):
        assert seen[index] == [place for place, flag in enumerate(sequence.mask) if flag]


def test_sequences_without_a_trained_token_take_no_forward_pass(make_sequences) -> None:
    sequences = make_sequences(3)
    sequences[1].mask = [0] * len(sequences[1].mask)
    members = [index for batch in make_micro_batches(sequences, 30, CPU) for index in batch.sequences]
    assert sorted(members) == [0, 2]


def test_a_trained_first_token_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="first token"):
        make_micro_batches([TrainSequence([1, 2], [1, 1], [0.0, 0.0], 1.0, 0)], 10, CPU)

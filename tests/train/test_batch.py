"""Packing into micro-batches: nothing lost, nothing twice, the budget kept, a group's prompt once."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.train.batch import MicroBatch, TrainSequence, make_micro_batches

CPU = torch.device("cpu")


@st.composite
def batches_of_sequences(draw) -> list[TrainSequence]:
    """Groups whose members begin alike for a while, with any mask that leaves the first token untrained."""
    made = []
    for group in range(draw(st.integers(0, 4))):
        prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
        for _ in range(draw(st.integers(1, 4))):
            own = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=12))
            ids = prompt + [token for token, _ in own]
            mask = [0] * len(prompt) + [flag for _, flag in own]
            made.append(TrainSequence(ids, mask, [0.0] * len(ids), 1.0, group))
    return made


def context(batch: MicroBatch, place: int) -> list[tuple[int, int]]:
    """(id, position) of what the token at ``place`` of the row sees, itself included, in order."""
    starts = [0]
    for span in batch.spans:
        starts.append(starts[-1] + span.length)
    index = next(i for i, start in enumerate(starts) if place < start) - 1
    seen = list(range(starts[index], place + 1))
    prefix = batch.spans[index].prefix
    if prefix is not None:
        seen = [*range(starts[prefix], starts[prefix + 1]), *seen]
    return [(int(batch.input_ids[i]), int(batch.position_ids[i])) for i in seen]


@given(batches_of_sequences(), st.integers(1, 60))
def test_each_trained_token_is_predicted_once_from_exactly_what_stands_before_it(sequences, budget) -> None:
    seen: dict[int, list[int]] = {}
    for batch in make_micro_batches(sequences, budget, CPU):
        assert sum(span.length for span in batch.spans) == len(batch.input_ids)
        assert len(batch.input_ids) <= budget or len(batch.sequences) == 1
        columns = (batch.rows, batch.predictors, batch.targets, batch.places)
        for row, predictor, target, place in zip(*(column.tolist() for column in columns), strict=True):
            sequence = sequences[batch.sequences[row]]
            assert sequence.mask[place] == 1
            assert sequence.ids[place] == target
            assert context(batch, predictor) == [(sequence.ids[i], i) for i in range(place)]
            seen.setdefault(batch.sequences[row], []).append(place)
    expected = {i: [p for p, flag in enumerate(s.mask) if flag] for i, s in enumerate(sequences) if s.trained}
    assert seen == expected, "sequences without a trained token take no forward pass, all others do, in order"


def sequence(prompt: list[int], mask: list[int], *, own: int, group: int = 0) -> TrainSequence:
    ids = prompt + [own] * len(mask)
    return TrainSequence(ids, [0] * len(prompt) + mask, [0.0] * len(ids), 1.0, group)


def test_the_prompt_of_a_group_stands_once_in_a_row() -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    group = [sequence(prompt, [1, 1, 0, 1], own=10 + member) for member in range(5)]
    (batch,) = make_micro_batches(group, 1000, CPU)
    assert len(batch.input_ids) == 6 + 5 * 3, "the prompt, and of each response what predicts a token"
    assert [span.prefix for span in batch.spans] == [None, 0, 0, 0, 0, 0]
    other = [sequence(prompt, [1], own=9, group=1), sequence(prompt, [1], own=8, group=2)]
    (apart,) = make_micro_batches(other, 1000, CPU)
    assert len(apart.input_ids) == 12, "other groups share nothing"


def test_what_follows_the_last_trained_token_is_left_out() -> None:
    """Nor is that token itself put in: it predicts nothing that is trained."""
    (batch,) = make_micro_batches([sequence([1, 2], [1, 0, 1, 0, 0, 0, 0], own=7)], 1000, CPU)
    assert batch.input_ids.tolist() == [1, 2, 7, 7]


def test_a_row_holds_as_many_sequences_as_its_budget(make_sequences) -> None:
    sequences = [sequence([1, 2, 3], [1, 1], own=5, group=group) for group in range(10)]
    assert [len(batch.sequences) for batch in make_micro_batches(sequences, 12, CPU)] == [3, 3, 3, 1]


def test_a_trained_first_token_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="first token"):
        make_micro_batches([TrainSequence([1, 2], [1, 1], [0.0, 0.0], 1.0, 0)], 10, CPU)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(4, 30))
def test_rows_are_as_few_and_then_as_even_as_the_order_allows(lengths, budget) -> None:
    sequences = [
        TrainSequence([1] * (length + 1), [0] * length + [1], [0.0] * (length + 1), 1.0, group)
        for group, length in enumerate(lengths)
    ]
    rows = [len(batch.input_ids) for batch in make_micro_batches(sequences, budget, CPU)]
    cuts = [
        [lengths[a:b] for a, b in pairwise([0, *places, len(lengths)])]
        for count in range(len(lengths))
        for places in combinations(range(1, len(lengths)), count)
    ]
    allowed = [cut for cut in cuts if all(len(row) == 1 or sum(row) <= budget for row in cut)]
    fewest = min(map(len, allowed))
    fullest = min(max(map(sum, cut)) for cut in allowed if len(cut) == fewest)
    assert (len(rows), max(rows)) == (fewest, fullest)

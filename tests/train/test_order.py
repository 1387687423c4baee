"""The order of questions: a function of the seed and the place alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agent_rl.train.order import ItemOrder
from tasks.base import TaskItem

ITEMS = [TaskItem(f"q{n}", f"question {n}", ("a",)) for n in range(23)]


def ids(order: ItemOrder, start: int, count: int, **label: str) -> list[str]:
    return [item.id for item in order.take(start, count, **label)]


@given(st.integers(1, 23), st.integers(0, 5), st.integers(0, 2**40))
def test_every_item_once_an_epoch(size: int, epoch: int, seed: int) -> None:
    order = ItemOrder(ITEMS[:size], seed)
    assert Counter(ids(order, epoch * size, size)) == Counter(item.id for item in ITEMS[:size])


@given(st.integers(1, 23), st.lists(st.integers(0, 30), max_size=8), st.integers(0, 5))
def test_pieces_join_to_the_whole(size: int, pieces: list[int], seed: int) -> None:
    """What a resumed run takes from step n on is what an uninterrupted one would have taken."""
    joined, start = [], 0
    for piece in pieces:
        joined += ids(ItemOrder(ITEMS[:size], seed), start, piece)
        start += piece
    assert joined == ids(ItemOrder(ITEMS[:size], seed), 0, start)


def test_epochs_seeds_and_labels_have_orders_of_their_own() -> None:
    order = ItemOrder(ITEMS, 0)
    found = [
        ids(order, 0, 23),
        ids(order, 23, 23),
        ids(order, 0, 23, label="warmup"),
        ids(ItemOrder(ITEMS, 1), 0, 23),
        [item.id for item in ITEMS],
    ]
    assert len({tuple(each) for each in found}) == len(found)


def test_order_is_the_same_on_every_machine() -> None:
    assert ids(ItemOrder(ITEMS, 7), 0, 5) == ["q20", "q4", "q14", "q3", "q22"]

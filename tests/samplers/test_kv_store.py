"""The store of waiting caches: its budget, what goes first, and what it tells of it."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.samplers.kv_store import KeptCache, KVStore

TOKEN_BYTES = 2 * 2 * 1 * 4 * 4  # layers, keys and values, heads, head_dim, float32
BIG = 2**40


def kv(ids: list[int]) -> torch.Tensor:
    return torch.zeros(2, 2, 1, len(ids), 4)


def prompt(ids: list[int]) -> KeptCache:
    return KeptCache(ids, kv(ids), torch.zeros(3))


def test_a_turn_is_found_by_what_goes_on_from_it() -> None:
    store = KVStore(BIG)
    store.keep_turn("a", [1, 2, 3], kv([1, 2, 3]))
    found = store.find_turn("a", [1, 2, 3, 4])
    assert found is not None
    assert found.ids == [1, 2, 3]
    assert store.find_turn("a", [1, 2, 3]) is None, "nothing new: no logits to draw from"
    assert store.find_turn("a", [1, 9, 3, 4]) is None, "rewritten"
    assert store.find_turn("b", [1, 2, 3, 4]) is None


def test_what_was_used_longest_ago_goes_first_and_is_counted_once() -> None:
    store = KVStore(4 * TOKEN_BYTES)
    assert store.keep_turn("a", [1, 2], kv([1, 2])) == 0
    assert store.keep_turn("b", [3, 4], kv([3, 4])) == 0
    assert store.keep_turn("c", [5], kv([5])) == 1
    assert store.find_turn("a", [1, 2, 9]) is None
    assert store.find_turn("b", [3, 4, 9]) is not None
    assert store.nbytes == 3 * TOKEN_BYTES
    assert store.count_lost("a", [1, 2, 9]) == 2
    assert store.count_lost("a", [1, 2, 9]) == 0


def test_a_prompt_that_is_used_outlives_caches_that_are_not() -> None:
    store = KVStore(5 * TOKEN_BYTES)
    store.keep_prompt(prompt([7, 7]))
    store.keep_turn("a", [1, 2], kv([1, 2]))
    assert store.find_prompt([7, 7]) is not None
    assert store.keep_turn("b", [3], kv([3])) == 1
    assert store.find_prompt([7, 7]) is not None
    assert store.find_turn("a", [1, 2, 3]) is None


def test_prompt_evicted_for_room_is_no_lost_trajectory() -> None:
    store = KVStore(2 * TOKEN_BYTES)
    store.keep_prompt(prompt([7]))
    assert store.keep_turn("a", [1, 2], kv([1, 2])) == 0
    assert store.find_prompt([7]) is None


def test_no_budget_keeps_nothing() -> None:
    store = KVStore(0)
    assert store.keep_turn("a", [1], kv([1])) == 1
    assert (len(store), store.nbytes) == (0, 0)
    assert store.count_lost("a", [1, 2]) == 1


def test_prompts_are_limited_in_number_too() -> None:
    store = KVStore(BIG)
    for n in range(100):
        store.keep_prompt(prompt([n]))
    assert len(store) == 64
    assert store.find_prompt([35]) is None
    assert store.find_prompt([36]) is not None


def test_end_of_a_session_forgets_its_loss_too() -> None:
    store = KVStore(0)
    store.keep_turn("a", [1], kv([1]))
    store.end_session("a")
    assert store.count_lost("a", [1, 2]) == 0


steps = st.tuples(st.sampled_from(["keep", "prompt", "drop", "end", "find"]), st.integers(0, 5), st.integers(1, 6))


@given(st.lists(steps, max_size=40), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_bytes_are_those_of_what_is_kept_and_never_above_the_budget(
    actions: list[tuple[str, int, int]], tokens: int
) -> None:
    store = KVStore(tokens * TOKEN_BYTES)
    kept = evicted = 0
    for action, who, length in actions:
        ids, session = [who] * length, str(who)
        if action == "keep":
            kept += 1
            evicted += store.keep_turn(session, ids, kv(ids))
        elif action == "prompt":
            evicted += store.keep_prompt(prompt(ids))
        elif action == "drop":
            store.drop_turn(session)
        elif action == "end":
            store.end_session(session)
        else:
            store.find_prompt(ids)
        assert store.nbytes == sum(cache.nbytes for cache in store._kept.values()) <= store.budget_bytes
        assert evicted <= kept

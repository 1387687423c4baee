"""The KV budget of the embedded sampler, and what joins in one pass."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_rl.samplers.base import SamplingParams
from agent_rl.testing import ToyCodec

TOKEN_BYTES = 2 * 2 * 2 * 8 * 4  # of the tiny model: layers, keys and values, heads, head_dim, float32


def two_turns(sampler: Any, prompts: list[list[int]], more: list[int]) -> list[Any]:
    """All first turns, then all second ones, as trajectories that wait for their tools together."""

    async def run() -> list[Any]:
        params = SamplingParams(temperature=0.0, max_tokens=5)
        firsts = await asyncio.gather(*(sampler.sample(p, params, session=f"s{n}") for n, p in enumerate(prompts)))
        asked = [p + turn.ids + more for p, turn in zip(prompts, firsts, strict=True)]
        seconds = await asyncio.gather(*(sampler.sample(ids, params, session=f"s{n}") for n, ids in enumerate(asked)))
        for n in range(len(prompts)):
            await sampler.end_session(f"s{n}")
        return [*firsts, *seconds]

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_evicted_caches_are_prefilled_again_and_counted(opened: Any, codec: ToyCodec) -> None:
    prompts = [codec.encode(f"a question of its own, number {n}") for n in range(4)]
    more = codec.encode(" so it says ")
    held = [len(p) + 4 for p in prompts]  # the last sampled token was never fed
    plenty, nothing = opened(), opened(kv_budget_mb=0)
    # Room for the turns of two; prompts, used longer ago than any turn, go before them.
    some = opened(kv_budget_mb=(2 * held[0] * TOKEN_BYTES + 10) / 2**20)
    turns = [[(t.ids, t.finish) for t in two_turns(sampler, prompts, more)] for sampler in (plenty, nothing, some)]
    assert turns[0] == turns[1] == turns[2]

    stats = plenty.take_stats()
    assert (stats.kv_evictions, stats.reprefilled_tokens) == (0, 0)
    assert stats.reused_tokens == sum(held)
    lost = nothing.take_stats()
    assert (lost.kv_evictions, lost.reused_tokens) == (8, 0), "also the second turns' caches, which nobody misses"
    assert lost.reprefilled_tokens == sum(held)
    assert lost.prefilled_tokens == stats.prefilled_tokens + sum(held)
    partly = some.take_stats()
    assert partly.reused_tokens == 2 * held[0]
    assert partly.reprefilled_tokens == 2 * held[0]


def test_equal_later_turns_without_their_caches_are_all_answered(opened: Any, codec: ToyCodec) -> None:
    """Members of a group that asked and read the same come back with the same ids, each with its cache gone."""
    prompts, more = [codec.encode("one question for all of the group")] * 3, codec.encode(" so it says ")
    found = []
    for sampler in (opened(), opened(kv_budget_mb=0)):
        found.append([(turn.ids, turn.finish) for turn in two_turns(sampler, prompts, more)])
    assert found[0] == found[1]
    assert len({tuple(ids) for ids, _ in found[0][3:]}) == 1


def watched(model: Any, widths: list[int]) -> Any:
    """Notes how many tokens each forward pass has."""
    return model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )


def test_turns_that_join_share_one_pass_with_those_that_run(
    opened: Any, codec: ToyCodec, model: Any, held: Any
) -> None:
    widths: list[int] = []
    hook, sampler = watched(model, widths), opened()
    first, *others = [codec.encode("x" * (20 + n)) for n in range(3)]

    async def run() -> None:
        with held(model) as gate:
            gate.clear()
            running = asyncio.ensure_future(
                sampler.sample(first, SamplingParams(temperature=0, max_tokens=3), session="a")
            )
            while not widths:  # noqa: ASYNC110 - set by the worker thread
                await asyncio.sleep(0.001)
            params = SamplingParams(temperature=0, max_tokens=2)
            joining = [asyncio.ensure_future(sampler.sample(ids, params, session=str(ids))) for ids in others]
            await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(running, *joining)

    try:
        asyncio.run(run())
    finally:
        hook.remove()
    assert widths == [20, 1 + 21 + 22, 3]


@pytest.mark.parametrize("limit", [1, 45, 10_000])
def test_new_tokens_of_a_pass_are_limited_but_one_turn_always_joins(
    opened: Any, codec: ToyCodec, model: Any, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_rl.samplers.hf.PREFILL_TOKENS", limit)
    widths: list[int] = []
    hook, sampler = watched(model, widths), opened()
    prompts = [codec.encode("y" * (20 + n)) for n in range(5)]
    try:
        two_turns(sampler, prompts, codec.encode("and more"))
    finally:
        hook.remove()
    assert max(widths) <= max(limit, 24) + 5, "five running turns at most, beside them"

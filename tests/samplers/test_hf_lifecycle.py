"""Cancellation, failures, closing, and changes of the policy."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from agent_rl.errors import ConfigError, SamplerError
from agent_rl.samplers.base import SamplingParams
from agent_rl.samplers.hf import HFSampler
from agent_rl.testing import tiny_model

LONG = SamplingParams(max_tokens=40, seed=1)


def start(sampler, ids, params=LONG, session="s"):
    return asyncio.ensure_future(sampler.sample(ids, params, session=session))


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it watches lives in the worker thread
            await asyncio.sleep(0.001)


def test_cancelled_turn_leaves_the_others_unharmed(opened, codec, model, held) -> None:
    sampler, ids = opened(), codec.encode("hello")

    async def run():
        others = [SamplingParams(max_tokens=30, seed=seed) for seed in (2, 3)]
        alone = [(await opened().sample(ids, params, session="x")).ids for params in others]
        with held(model) as gate:
            tasks = [start(sampler, ids, LONG, "a"), *(start(sampler, ids, p, f"b{p.seed}") for p in others)]
            await until(lambda: sampler.stats.decode_passes >= 2)
            gate.clear()
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            gate.set()
            turns = await asyncio.gather(*tasks[1:])
        await sampler.end_session("a")
        return alone, [turn.ids for turn in turns]

    alone, turns = asyncio.run(run())
    assert turns == alone


def test_turn_cancelled_while_it_waits_is_never_begun(opened, codec, model, held) -> None:
    sampler = opened(max_batch=1)

    async def run():
        with held(model) as gate:
            gate.clear()
            first = start(sampler, codec.encode("first"), SamplingParams(max_tokens=3), "a")
            second = start(sampler, codec.encode("a second one"), LONG, "b")
            await asyncio.sleep(0.01)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            gate.set()
            await first

    asyncio.run(run())
    assert sampler.stats.prefilled_tokens == len("first")


def test_end_of_a_session_frees_its_cache(opened, codec) -> None:
    sampler, ids = opened(), codec.encode("a prompt of some length")

    async def run():
        turn = await sampler.sample(ids, SamplingParams(max_tokens=4), session="a")
        await sampler.end_session("a")
        longer = ids + turn.ids + codec.encode(" more")
        await sampler.sample(longer, SamplingParams(max_tokens=2), session="a")

    asyncio.run(run())
    assert sampler.stats.reused_tokens == 0
    asyncio.run(sampler.end_session("a"))
    asyncio.run(sampler.sample(ids, SamplingParams(max_tokens=1), session="other"))
    asyncio.run(sampler.end_session("other"))
    asyncio.run(until(lambda: sampler._inbox.empty()))
    asyncio.run(until(lambda: len(sampler._store) == 2))  # the two prompts


def test_new_weights_are_used_at_once(opened, codec, full_logprobs) -> None:
    """Neither the shared prompt nor a session's cache may survive the change."""
    policy, ids = tiny_model(codec.vocabulary), codec.encode("the very same prompt")
    sampler = opened(policy)

    async def run():
        first = await sampler.sample(ids, SamplingParams(max_tokens=6, seed=1), session="a")
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1.25)
        sampler.policy_updated(7)
        second = await sampler.sample(ids, SamplingParams(max_tokens=6, seed=1), session="b")
        longer = ids + first.ids + ids
        third = await sampler.sample(longer, SamplingParams(max_tokens=6, seed=1), session="a")
        return first, second, longer, third

    first, second, longer, third = asyncio.run(run())
    assert (first.version, second.version, third.version) == (0, 7, 7)
    assert second.logprobs == pytest.approx(full_logprobs(ids, second.ids, model=policy), abs=1e-5)
    assert third.logprobs == pytest.approx(full_logprobs(longer, third.ids, model=policy), abs=1e-5)


def test_policy_may_not_change_while_a_turn_is_sampled(opened, codec, model, held) -> None:
    sampler = opened()

    async def run():
        with held(model) as gate:
            gate.clear()
            task = start(sampler, codec.encode("hello"), SamplingParams(max_tokens=3))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="1 turns were being sampled"):
                sampler.policy_updated(1)
            gate.set()
            return await task

    assert asyncio.run(run()).version == 0
    sampler.policy_updated(1)


def test_prefill_of_a_cancelled_turn_does_not_outlive_the_policy(opened, codec, held, full_logprobs) -> None:
    """The rollout's time is up while its prompt is prefilled; the weights change; the question comes again."""
    policy, ids = tiny_model(codec.vocabulary), codec.encode("a question that is asked again")
    sampler = opened(policy)
    inside = threading.Event()

    async def run():
        with held(policy) as gate:
            gate.clear()
            hook = policy.register_forward_hook(lambda *_: inside.set())
            task = start(sampler, ids, LONG, "a")
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release = threading.Timer(0.1, gate.set)
            release.start()
            # What a trainer does: the old pass may still run, but its result must not be remembered.
            sampler.policy_updated(1)
            await until(inside.is_set)
            await asyncio.sleep(0.05)
            hook.remove()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1.25)
        return await sampler.sample(ids, SamplingParams(max_tokens=5, seed=1), session="b")

    turn = asyncio.run(run())
    assert turn.logprobs == pytest.approx(full_logprobs(ids, turn.ids, model=policy), abs=1e-5)


def breaks_once(model, when):
    """The model raises in its first forward pass for which ``when(input_ids)`` holds."""
    fired = []

    def hook(module, args, kwargs):
        if not fired and when(kwargs["input_ids"]):
            fired.append(True)
            raise RuntimeError("out of memory, say")

    return model.register_forward_pre_hook(hook, with_kwargs=True)


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_model_that_raises_breaks_its_turns_and_no_later_one(opened, codec, model, where) -> None:
    sampler, ids = opened(), codec.encode("hello")
    hook = breaks_once(model, lambda tokens: (tokens.shape[1] == len(ids)) == (where == "prefill"))

    async def run():
        tasks = [start(sampler, ids, LONG, f"s{n}") for n in range(3)]
        async with asyncio.timeout(20):
            return await asyncio.gather(*tasks, return_exceptions=True)

    try:
        outcomes = asyncio.run(run())
    finally:
        hook.remove()
    broken = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert broken
    for error in broken:
        assert isinstance(error, SamplerError)
        assert "RuntimeError: out of memory, say" in str(error)
    expected = asyncio.run(opened().sample(ids, LONG, session="x"))
    again = asyncio.run(sampler.sample(ids, LONG, session="after"))
    assert again.ids == expected.ids


def test_close_ends_what_is_running_and_what_waits(codec, model, held) -> None:
    sampler = HFSampler(model, codec, max_batch=1)

    async def run():
        with held(model) as gate:
            gate.clear()
            tasks = [start(sampler, codec.encode("hello"), LONG, f"s{n}") for n in range(3)]
            await asyncio.sleep(0.01)
            threading.Timer(0.05, gate.set).start()
            sampler.close()
            async with asyncio.timeout(20):
                return await asyncio.gather(*tasks, return_exceptions=True)

    for outcome in asyncio.run(run()):
        assert isinstance(outcome, SamplerError)
        assert "closed" in str(outcome)
    with pytest.raises(SamplerError, match="closed"):
        asyncio.run(sampler.sample([1], LONG, session="late"))
    sampler.close()


def test_sampler_serves_one_event_loop_after_another(opened, codec) -> None:
    sampler, ids = opened(), codec.encode("hello")
    first = asyncio.run(sampler.sample(ids, LONG, session="a"))
    assert asyncio.run(sampler.sample(ids, LONG, session="b")).ids == first.ids


def test_model_with_sliding_layers_is_refused_before_anything_is_sampled(codec) -> None:
    config = Gemma3TextConfig(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=4,
    )
    with pytest.raises(ConfigError, match=r"gemma3_text.*sliding_attention"):
        HFSampler(Gemma3ForCausalLM(config), codec)

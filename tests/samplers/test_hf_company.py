"""What a turn says never depends on who else is in the batch, on cached turns, or on the shared prompt."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from agent_rl.samplers.base import SamplingParams

PROMPTS = ["say 3", "who is there, and why?", "x", "a much longer prompt that takes many more columns than others" * 3]


def asks(codec, count: int, **params):
    rng = random.Random(count)
    made = []
    for index in range(count):
        settings = {"temperature": 1.0, "max_tokens": rng.randint(3, 40), "seed": index} | params
        made.append((codec.encode(PROMPTS[index % len(PROMPTS)]), SamplingParams(**settings), f"s{index}"))
    return made


def test_greedy_equals_generate_in_any_company(opened, ask, codec, reference, full_logprobs) -> None:
    wanted = asks(codec, 9, temperature=0.0)
    for turn, (ids, params, _) in zip(ask(opened(), wanted), wanted, strict=True):
        expected = reference.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=params.max_tokens,
            pad_token_id=codec.eos_id,
        )[0, len(ids) :].tolist()
        assert turn.ids == expected
        assert turn.finish == ("stop" if turn.ids[-1] == codec.eos_id else "length")
        assert turn.logprobs == pytest.approx(full_logprobs(ids, turn.ids), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_sampled_logprobs_are_those_of_a_full_forward(opened, ask, codec, full_logprobs, temperature) -> None:
    wanted = asks(codec, 6, temperature=temperature)
    for turn, (ids, _, _) in zip(ask(opened(), wanted), wanted, strict=True):
        assert turn.logprobs == pytest.approx(full_logprobs(ids, turn.ids, temperature), abs=1e-5)


def test_a_seed_says_the_same_in_any_company(opened, ask, codec) -> None:
    wanted = asks(codec, 8)
    alone = [ask(opened(), [one])[0].ids for one in wanted]
    assert [turn.ids for turn in ask(opened(), wanted)] == alone
    assert [turn.ids for turn in ask(opened(max_batch=3), wanted[::-1])][::-1] == alone, "three at a time"
    assert len({tuple(ids) for ids in alone}) > 4, "the seeds do differ"


def test_turns_that_join_and_leave_at_different_times(opened, codec, full_logprobs) -> None:
    wanted = asks(codec, 8)
    alone_sampler, sampler = opened(), opened()

    async def run():
        alone = [(await alone_sampler.sample(ids, params, session=name)).ids for ids, params, name in wanted]
        started = []
        for place, (ids, params, name) in enumerate(wanted):
            started.append(asyncio.ensure_future(sampler.sample(ids, params, session=name)))
            # The next one joins when this many tokens more have been decoded by those already there.
            goal = sampler.stats.decode_passes + place % 3
            while sampler.stats.decode_passes < goal and not all(t.done() for t in started):  # noqa: ASYNC110
                await asyncio.sleep(0)
        return alone, await asyncio.gather(*started)

    alone, turns = asyncio.run(run())
    assert [turn.ids for turn in turns] == alone
    for turn, (ids, _, _) in zip(turns, wanted, strict=True):
        assert turn.logprobs == pytest.approx(full_logprobs(ids, turn.ids), abs=1e-5)


def test_the_cache_grows_in_the_middle_of_turns(opened, ask, codec, full_logprobs) -> None:
    """The slab begins with 256 columns."""
    ids = codec.encode("abc " * 60)
    wanted = [(ids, SamplingParams(max_tokens=60, seed=seed), f"s{seed}") for seed in range(3)]
    turns = ask(opened(), wanted)
    assert max(len(turn.ids) for turn in turns) + len(ids) > 256
    for turn in turns:
        assert turn.logprobs == pytest.approx(full_logprobs(ids, turn.ids), abs=1e-5)


def test_second_turn_reuses_the_first_and_prefills_the_observation_alone(opened, codec, full_logprobs) -> None:
    sampler = opened()
    prompt, observation = codec.encode("who was it?"), codec.encode("\n<information>\nDoc 1\n</information>\n")

    async def run():
        first = await sampler.sample(prompt, SamplingParams(max_tokens=12, seed=5), session="a")
        stats = sampler.take_stats()
        ids = prompt + first.ids + observation
        second = await sampler.sample(ids, SamplingParams(max_tokens=15, seed=6), session="a")
        return first, stats, ids, second

    first, before, ids, second = asyncio.run(run())
    assert before.prefilled_tokens == len(prompt)
    after = sampler.take_stats()
    # The newest sampled token was never fed to the model, so it is prefilled with the observation.
    assert after.reused_tokens == len(prompt) + len(first.ids) - 1
    assert after.prefilled_tokens == len(observation) + 1
    assert second.logprobs == pytest.approx(full_logprobs(ids, second.ids), abs=1e-5)

    fresh = opened()
    again = asyncio.run(fresh.sample(ids, SamplingParams(max_tokens=15, seed=6), session="other"))
    assert again.ids == second.ids
    assert again.logprobs == pytest.approx(second.logprobs, abs=1e-5)
    assert fresh.stats.prefilled_tokens == len(ids)


def test_history_that_was_rewritten_is_not_reused(opened, codec, full_logprobs) -> None:
    sampler = opened()

    async def run():
        await sampler.sample(codec.encode("one two three"), SamplingParams(max_tokens=5), session="a")
        other = codec.encode("one TWO three and then some more")
        return other, await sampler.sample(other, SamplingParams(max_tokens=5), session="a")

    ids, turn = asyncio.run(run())
    assert sampler.stats.reused_tokens == 0
    assert turn.logprobs == pytest.approx(full_logprobs(ids, turn.ids), abs=1e-5)


def test_a_group_shares_the_prefill_of_its_prompt(opened, ask, codec, full_logprobs) -> None:
    sampler = opened()
    ids = codec.encode("the same question for everyone")
    turns = ask(sampler, [(ids, SamplingParams(max_tokens=9, seed=seed), f"g/{seed}") for seed in range(5)])
    assert sampler.stats.prefilled_tokens == len(ids)
    assert sampler.stats.shared_prompt_tokens == 4 * len(ids)
    assert len({tuple(turn.ids) for turn in turns}) > 1
    for turn in turns:
        assert turn.logprobs == pytest.approx(full_logprobs(ids, turn.ids), abs=1e-5)


def test_statistics_count_what_was_done(opened, ask, codec) -> None:
    sampler = opened()
    turns = ask(sampler, asks(codec, 4))
    stats = sampler.take_stats()
    assert stats.decoded_tokens == sum(len(turn.ids) for turn in turns)
    assert 0 < stats.decode_passes <= max(len(turn.ids) for turn in turns) * 4
    assert sampler.take_stats().decoded_tokens == 0

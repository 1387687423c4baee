"""Random schedules: whoever joins, leaves, waits for a tool, is evicted or shares a prompt, a turn says the same.

Each schedule is several trajectories of up to three turns over one sampler, with groups that share prompts, several in
flight, some of them cancelled, under a KV budget from nothing to plenty. Every turn is held against transformers'
`generate` on that turn's ids alone (float32, greedy, eager attention): equal ids, log-probabilities within 1e-4.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from agent_rl.samplers import hf
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.samplers.hf import HFSampler
from agent_rl.testing import ToyCodec

SCHEDULES = 240
BATCHES = 8  # tests that they are dealt out to
KIB = 1 / 1024


@dataclass(frozen=True)
class Schedule:
    seed: int

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        fields: dict[str, Any] = {
            "max_batch": rng.choice([1, 2, 3, 5, 8]),
            "kv_budget_mb": rng.choice([0, 6 * KIB, 20 * KIB, 60 * KIB, 64]),
            "prefill_tokens": rng.choice([1, 24, 512]),
            "trajectories": self._trajectories(rng),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _trajectories(self, rng: random.Random) -> list[dict[str, Any]]:
        prompts = [[rng.randrange(96) for _ in range(rng.randint(1, 40))] for _ in range(2)]
        return [
            {
                "prompt": rng.choice(prompts),
                "lengths": [rng.randint(1, 9) for _ in range(rng.randint(1, 3))],
                "observations": [[rng.randrange(96) for _ in range(rng.randint(1, 30))] for _ in range(3)],
                "pauses": [rng.choice([0, 0, 1, 4, 9]) for _ in range(4)],
                "cancelled_in": rng.choice([None] * 9 + [0]),
            }
            for _ in range(rng.randint(2, 7))
        ]


async def play(schedule: Any, sampler: HFSampler) -> list[tuple[list[int], SampledTurn]]:
    """Every turn that was answered: what it was asked after, and what came."""
    answered: list[tuple[list[int], SampledTurn]] = []

    async def pause(count: int) -> None:
        """Until the sampler has made ``count`` passes more, or is idle: a tool that takes some tokens' time."""
        until = sampler.stats.decode_passes + count
        while sampler.stats.decode_passes < until and sampler._pending:  # noqa: ASYNC110 - set by the worker thread
            await asyncio.sleep(0.0002)

    async def trajectory(number: int, plan: dict[str, Any]) -> None:
        ids, session = list(plan["prompt"]), f"s{number}"
        await pause(plan["pauses"][0])
        for turn, length in enumerate(plan["lengths"]):
            asked = asyncio.ensure_future(
                sampler.sample(ids, SamplingParams(temperature=0.0, max_tokens=length), session=session)
            )
            if plan["cancelled_in"] == turn:
                await pause(1)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                break
            said = await asked
            answered.append((list(ids), said))
            ids += said.ids + plan["observations"][turn]
            await pause(plan["pauses"][turn + 1])
        await sampler.end_session(session)

    async with asyncio.timeout(60):
        await asyncio.gather(*(trajectory(number, plan) for number, plan in enumerate(schedule.trajectories)))
    return answered


@pytest.fixture(scope="module")
def alone(reference: Any, codec: ToyCodec) -> Any:
    """`generate` for one prompt, with the log-probabilities of what it took."""

    def generate(ids: list[int], length: int) -> tuple[list[int], list[float]]:
        found = reference.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=length,
            pad_token_id=codec.eos_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        said = found.sequences[0, len(ids) :].tolist()
        logprobs = [
            float(torch.log_softmax(step[0], -1)[token]) for step, token in zip(found.logits, said, strict=True)
        ]
        return said, logprobs

    return generate


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, BATCHES))])
def test_batched_turns_equal_generate_one_by_one(
    model: Any, codec: ToyCodec, alone: Any, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = evictions = reprefilled = shared = reused = cancelled = 0
    for seed in range(batch, SCHEDULES, BATCHES):
        schedule: Any = Schedule(seed)
        monkeypatch.setattr(hf, "PREFILL_TOKENS", schedule.prefill_tokens)
        sampler = HFSampler(model, codec, max_batch=schedule.max_batch, kv_budget_mb=schedule.kv_budget_mb)
        try:
            answered = asyncio.run(play(schedule, sampler))
            stats = sampler.take_stats()
            assert sampler._store.nbytes <= schedule.kv_budget_mb * 2**20
        finally:
            sampler.close()
        for ids, turn in answered:
            said, logprobs = alone(ids, len(turn.ids))
            assert turn.ids == said, f"schedule {seed}"
            assert turn.logprobs == pytest.approx(logprobs, abs=1e-4), f"schedule {seed}"
        turns += len(answered)
        evictions += stats.kv_evictions
        reprefilled += stats.reprefilled_tokens
        shared += stats.shared_prompt_tokens
        reused += stats.reused_tokens
        cancelled += sum(plan["cancelled_in"] is not None for plan in schedule.trajectories)
    # What the schedules are to force did happen in this batch of them.
    assert turns > 100
    assert min(evictions, reprefilled, shared, reused, cancelled) > 0

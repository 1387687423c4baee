"""Demonstrations end as the policy would have to end them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.plain import PlainGrammar
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec
from agent_rl.train.warmup import OracleSampler, oracle_trajectories
from tasks.base import OracleTurn

CODEC = ToyCodec()


class FreeText(EchoTask):
    tools = ()

    def oracle(self, item):
        return [OracleTurn(f"so <answer>{item.gold[0]}</answer>")]


@pytest.mark.parametrize(
    ("task", "grammar", "last"), [(FreeText(), PlainGrammar(), "<eos>"), (EchoTask(), SearchR1Grammar(), ">")]
)
def test_a_turn_that_no_stop_string_ends_is_taught_its_end_token(task, grammar, last) -> None:
    spec = RolloutSpec(
        task=task,
        sampler=ScriptedSampler(CODEC, {}),
        tools=ScriptedTools(lambda *_: "doc"),
        grammar=grammar,
        codec=CODEC,
        limits=RolloutLimits(),
    )
    (trace,) = asyncio.run(oracle_trajectories(task.items("train")[:1], replace(spec, sampler=OracleSampler(spec))))
    assert CODEC.pieces(trace.ledger.input_ids)[-1] == last
    assert trace.ledger.loss_mask[-1] == 1

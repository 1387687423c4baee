"""DAPO's soft punishment of long responses."""

from __future__ import annotations

import asyncio

import pytest

from agent_rl.config.compose import compose
from agent_rl.errors import ConfigError
from agent_rl.rollout.engine import RolloutSpec, run_rollout
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.overlong import overlong_penalty
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (120, -1.0)]
)
def test_equation_13(tokens, penalty):
    assert overlong_penalty(tokens, 100, 20) == pytest.approx(penalty)


def test_no_buffer_no_penalty():
    assert overlong_penalty(1000, 100, 0) == 0.0


@pytest.mark.parametrize(("buffer", "value"), [(0, 1.0), (16, 1.0), (32, 0.5)])
def test_it_is_part_of_the_reward(buffer, value):
    """A right answer of 24 tokens, where 40 are allowed."""
    codec, answer = ToyCodec(), "<answer>      0</answer>"
    task = EchoTask(1)
    spec = RolloutSpec(
        task=task,
        sampler=ScriptedSampler(codec, {"*": [answer]}),
        tools=ScriptedTools(lambda *_: ""),
        grammar=SearchR1Grammar(),
        codec=codec,
        limits=RolloutLimits(max_response_tokens=40),
        overlong_buffer_tokens=buffer,
    )
    trajectory = asyncio.run(run_rollout(task.items("train")[0], spec, seed=0, session="*"))
    assert trajectory.score is not None
    assert trajectory.ledger.response_length() == 24
    assert trajectory.score.value == pytest.approx(value)
    assert trajectory.score.parts["em"] == 1.0
    assert ("overlong" in trajectory.score.parts) == bool(buffer)


def test_a_buffer_above_the_limit_is_refused():
    with pytest.raises(ConfigError, match=r"overlong_buffer_tokens=300 is above rollout.max_response_tokens=200"):
        compose("train", ["rollout.overlong_buffer_tokens=300", "rollout.max_response_tokens=200"])

"""The time split of rollouts: its parts, and the share of tool time that others' decoding hid."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.rollout.engine import RolloutSpec, run_rollout
from agent_rl.rollout.ledger import TokenLedger
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.rollout.timing import time_split
from agent_rl.rollout.trajectory import Trajectory, Turn
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec
from tasks.base import TaskItem

ITEM = TaskItem("q", "?", ("!",))


def trajectory(*turns: tuple[float, float, float, float]) -> Trajectory:
    """Turns as (began, queued, generate, tool)."""
    made = [Turn(0, 0, "", "stop", began=b, queued_s=q, generate_s=g, tool_s=t) for b, q, g, t in turns]
    return Trajectory(ITEM, "s", "g", 0, TokenLedger(), turns=made)


def test_wait_that_nobody_else_decoded_through_is_not_hidden() -> None:
    found = time_split([trajectory((0, 0, 1, 3), (4, 0, 1, 0))])
    assert found["rollout/tool_hidden_share"] == 0
    assert (found["rollout/generate_s_mean"], found["rollout/tool_s_mean"]) == (2, 3)


def test_wait_is_hidden_while_another_is_generated_and_not_while_it_queues() -> None:
    waits = trajectory((0, 0, 1, 4))  # waits from 1 to 5
    other = trajectory((1, 2, 1, 0))  # queues from 1 to 3, is generated from 3 to 4
    found = time_split([waits, other])
    assert found["rollout/tool_hidden_share"] == pytest.approx(1 / 4)
    assert found["rollout/queued_s_mean"] == 1


def test_no_tool_no_share() -> None:
    assert "rollout/tool_hidden_share" not in time_split([trajectory((0, 0, 1, 0))])


part = st.integers(0, 6)


@given(st.lists(st.tuples(part, part, part, part), min_size=1, max_size=6))
def test_share_equals_a_count_of_moments(turns: Sequence[tuple[int, int, int, int]]) -> None:
    found = time_split([trajectory(turn) for turn in turns])  # type: ignore[arg-type]
    busy = {moment for b, q, g, _ in turns for moment in range(b + q, b + q + g)}
    waited = [moment for b, q, g, t in turns for moment in range(b + q + g, b + q + g + t)]
    if not waited:
        assert "rollout/tool_hidden_share" not in found
        return
    wanted = sum(moment in busy for moment in waited) / len(waited)
    assert found["rollout/tool_hidden_share"] == pytest.approx(wanted)


class Queues(ScriptedSampler):
    """Says that half of each turn's time was spent in its queue."""

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        await asyncio.sleep(0.04)
        turn: Any = await super().sample(ids, params, session=session)
        return SampledTurn(turn.ids, turn.logprobs, turn.finish, turn.stop_string, turn.version, queued_s=0.02)


def test_parts_of_a_trajectory_add_up_to_its_time() -> None:
    codec = ToyCodec()
    script = {"s": ["<search>one</search>", "<answer>1</answer>"]}
    tools = ScriptedTools(lambda *_: "a doc", delay_s=0.05)
    spec = RolloutSpec(EchoTask(), Queues(codec, script), tools, SearchR1Grammar(), codec, RolloutLimits())
    found = asyncio.run(run_rollout(ITEM, spec, seed=0, session="s"))
    first, second = found.turns
    assert first.queued_s == second.queued_s == 0.02
    assert first.generate_s >= 0.019
    assert first.tool_s >= 0.049
    assert second.began >= first.began + first.queued_s + first.generate_s + first.tool_s - 1e-6
    parts = sum(turn.queued_s + turn.generate_s + turn.tool_s for turn in found.turns)
    assert parts <= found.seconds
    assert parts == pytest.approx(found.seconds, abs=0.05)

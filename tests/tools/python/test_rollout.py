"""The python tool in whole rollouts: grammar, engine, client and a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_rl.rollout.engine import RolloutSpec, run_rollout
from agent_rl.rollout.groups import GroupPlan, run_groups
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.rollout.tool_client import ToolClient
from agent_rl.rollout.trajectory import StopReason
from agent_rl.testing import EchoTask, ScriptedSampler, ToyCodec
from tools.python.forkserver import ForkServer
from tools.python.sandbox import SandboxBroken

CODEC = ToyCodec()


class PythonTask(EchoTask):
    tools = ("search", "python")


TASK = PythonTask()


def rollouts(url: str, turns: list[str], *, groups: bool = False, **limits: Any) -> list[Any]:
    async def run() -> list[Any]:
        async with ToolClient(url) as tools:
            spec = RolloutSpec(
                task=TASK,
                sampler=ScriptedSampler(CODEC, {"*": turns} if not groups else (lambda *a: turns[_turn(a[0])])),
                tools=tools,
                grammar=SearchR1Grammar(),
                codec=CODEC,
                limits=RolloutLimits(max_response_tokens=4000, max_observation_tokens=1000, **limits),
            )
            if groups:
                found = await run_groups(TASK.items("train"), spec, GroupPlan(size=4), seed=0, label="t")
                return [trajectory for group in found for trajectory in group.trajectories]
            return [await run_rollout(TASK.items("train")[1], spec, seed=0, session="one")]

    def _turn(ids: list[int]) -> int:
        return CODEC.decode(ids).count("</output>")

    return asyncio.run(run())


def test_a_trajectory_keeps_its_interpreter_and_ends_it(python) -> None:
    before = python.health()["tools"]["python"]["sessions"]
    turns = [
        "<python>\n  x = 1\n  print('set')\n</python>",
        "<think>now <python>never</python>",  # the sampler stops there, and the same turn goes on
        "</think><python> x + 41 </python>",
        "<python>1 / 0</python>",
        "<answer>1</answer>",
    ]
    (trajectory,) = rollouts(python.url, turns)
    assert trajectory.stop_reason is StopReason.ANSWER
    text = CODEC.decode(trajectory.ledger.input_ids)
    assert "\n<output>\nset\n</output>\n" in text
    assert "\n<output>\n42\n</output>\n" in text
    assert "ZeroDivisionError: division by zero\n</output>" in text
    assert trajectory.counters["tool_ok"] == 2
    assert trajectory.counters["tool_error"] == 1
    trained = [id_ for id_, flag in zip(trajectory.ledger.input_ids, trajectory.ledger.loss_mask, strict=True) if flag]
    assert CODEC.decode(trained) == "".join(turns)
    assert python.health()["tools"]["python"]["sessions"] == before


def test_groups_of_trajectories_each_have_their_own(python) -> None:
    turns = [
        "<python>import os; print('x' in globals(), os.listdir('.')); x = open('f', 'w')</python>",
        "<python>print('x' in globals(), os.listdir('.'))</python>",
        "<answer>1</answer>",
    ]
    found = rollouts(python.url, turns, groups=True)
    assert len(found) == 16
    for trajectory in found:
        assert trajectory.stop_reason is StopReason.ANSWER
        assert [turn.observation for turn in trajectory.turns[:2]] == [
            "\n<output>\nFalse []\n</output>\n",
            "\n<output>\nTrue ['f']\n</output>\n",
        ]


def test_a_limit_is_an_observation_and_the_trajectory_goes_on(serve) -> None:
    with serve(timeout_s=0.3) as python:
        turns = ["<python>x = 1\nwhile True: pass</python>", "<python>'x' in globals()</python>", "<answer>1</answer>"]
        (trajectory,) = rollouts(python.url, turns)
    assert trajectory.scored
    assert trajectory.counters["tool_timeout"] == 1
    assert "the next call starts clean" in trajectory.turns[0].observation
    assert trajectory.turns[1].observation == "\n<output>\nFalse\n</output>\n"


def test_a_rollout_that_times_out_takes_its_code_along(serve) -> None:
    with serve(timeout_s=60, workers=1) as python:
        (trajectory,) = rollouts(python.url, ["<python>import time; time.sleep(50)</python>"], rollout_timeout_s=0.5)
        assert trajectory.stop_reason is StopReason.ROLLOUT_TIMEOUT
        assert python.health()["tools"]["python"]["sessions"] == 0
        assert python.run("1")["text"] == "1\n"


def test_a_sandbox_that_cannot_be_made_is_never_a_reward(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: ForkServer) -> None:
        raise SandboxBroken("a sandbox could not be made: no memory")

    with serve(warm=0) as python:
        monkeypatch.setattr(ForkServer, "spawn", broken)
        (trajectory,) = rollouts(python.url, ["<python>1</python>"])
    assert trajectory.stop_reason is StopReason.FAILED
    assert (trajectory.failure.boundary, trajectory.score) == ("tool", None)

"""Groups: order, failure rules, retries, and seeds that do not depend on who else runs."""

from __future__ import annotations

import asyncio

from agent_rl.algo.objective import Objective
from agent_rl.config.schema import AlgoConfig
from agent_rl.errors import ToolServerUnavailable
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.groups import Group, GroupPlan, run_groups
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.rollout.statistics import rollout_metrics
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec

CODEC = ToyCodec()
TASK = EchoTask()


def run(script, reply, plan: GroupPlan, items=None) -> tuple[list[Group], RolloutSpec]:
    spec = RolloutSpec(
        TASK, ScriptedSampler(CODEC, script), ScriptedTools(reply), SearchR1Grammar(), CODEC, RolloutLimits()
    )
    items = TASK.items("train")[:2] if items is None else items
    return asyncio.run(run_groups(items, spec, plan, seed=7, label="t")), spec


def searching(ids, params, session) -> str:
    return "<search>x</search>" if "information" not in CODEC.decode(ids) else "<answer>0</answer>"


def test_groups_come_back_in_order() -> None:
    groups, _ = run(searching, lambda *_: "doc", GroupPlan(3))
    assert [group.item.id for group in groups] == ["q0", "q1"]
    assert [[t.sample for t in group.trajectories] for group in groups] == [[0, 1, 2]] * 2
    assert [[t.score.value for t in group.trajectories if t.score] for group in groups] == [[1] * 3, [-1] * 3]


def test_two_of_four_broken_keep_the_baseline_of_the_survivors() -> None:
    """PrimeIntellect-ai/prime-rl#2076: n = 4, two samples fail with 503."""

    def reply(tool, arguments):
        return "doc"

    def script(ids, params, session):
        sample = int(session.split("/")[-2])
        if sample >= 2:
            return ToolServerUnavailable("503")
        return f"<answer>{sample}</answer>"

    groups, _ = run(script, reply, GroupPlan(4, min_group=2, retries=0), TASK.items("train")[:1])
    group = groups[0]
    assert [t.scored for t in group.trajectories] == [True, True, False, False]
    assert group.kept
    rewards = [t.score.value if t.score else None for t in group.trajectories]
    advantages = Objective(AlgoConfig(advantage="group_mean")).advantages(rewards, [0] * 4)
    assert advantages.tolist() == [1.0, -1.0, 0.0, 0.0]
    metrics = rollout_metrics(groups)
    assert metrics["rollout/failed"] == 2
    assert metrics["reward/mean"] == 0.0


def test_group_with_too_few_survivors_is_dropped_and_counted() -> None:
    def script(ids, params, session):
        return "<answer>0</answer>" if "/0/1" in session else ToolServerUnavailable("down")

    groups, _ = run(script, lambda *_: "doc", GroupPlan(3, min_group=2, retries=0))
    assert [group.kept for group in groups] == [False, False]
    assert rollout_metrics(groups)["rollout/dropped_groups"] == 2


def test_broken_trajectory_is_run_again_with_the_same_draws() -> None:
    failures = iter([True, False, False, False])

    def replies(tool, arguments):
        return ToolServerUnavailable("down") if next(failures, False) else "doc"

    groups, spec = run(searching, replies, GroupPlan(2, retries=1), TASK.items("train")[:1])
    again = next(t for t in groups[0].trajectories if t.attempts == 2)
    assert again.scored
    seeds = [params.seed for session, _, params in spec.sampler.requests if f"q0/{again.sample}/" in session]
    assert seeds[0] == seeds[1], "the second attempt's first turn draws what the first attempt drew"
    assert rollout_metrics(groups)["rollout/retried"] == 1


def test_seeds_differ_between_samples_and_repeat_between_runs() -> None:
    def seeds() -> list[int]:
        _, spec = run(searching, lambda *_: "doc", GroupPlan(3))
        return sorted(params.seed for _, _, params in spec.sampler.requests)

    first = seeds()
    assert first == seeds()
    assert len(set(first)) == len(first)


def test_at_most_max_in_flight_run_together() -> None:
    running, most = 0, 0

    class Counting(ScriptedSampler):
        async def sample(self, ids, params, *, session):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return self.turn("<answer>0</answer>", params)

    spec = RolloutSpec(
        TASK,
        Counting(CODEC, {}),
        ScriptedTools(lambda *_: ""),
        SearchR1Grammar(),
        CODEC,
        RolloutLimits(),
    )
    asyncio.run(run_groups(TASK.items("train"), spec, GroupPlan(8, max_in_flight=5), seed=0, label="t"))
    assert most == 5

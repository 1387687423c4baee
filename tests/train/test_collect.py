"""Dynamic sampling: uniform groups are replaced by new questions, a bounded number of times, in a fixed order."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rl.algo.objective import Objective
from agent_rl.config.schema import AlgoConfig, OverlongConfig, RunConfig, TokenWeightConfig
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import SearchR1Grammar
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec
from agent_rl.train.collect import collect_groups
from agent_rl.train.order import ItemOrder
from agent_rl.train.step import training_sequences
from tasks.base import Score, TaskItem


class JudgedTask(EchoTask):
    """``mixed`` items get rewards by turns 1, 0; all others are uniform."""

    def __init__(self, mixed: set[str] | None = None) -> None:
        super().__init__()
        self.mixed = mixed or set()
        self.asked: list[str] = []

    def score(self, item: TaskItem, response_text: str) -> Score:
        self.asked.append(item.id)
        return Score(float(item.id in self.mixed and self.asked.count(item.id) % 2))


def make_config(**group_filter: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "algo": {"group_filter": group_filter},
            "rollout": {"group_size": 2},
            "train": {"prompts_per_step": 2},
        }
    )


CODEC = ToyCodec()
ITEMS = [TaskItem(str(number), f"q{number}", ("a",)) for number in range(6)]


def make_spec(task: EchoTask) -> RolloutSpec:
    return RolloutSpec(
        task=task,
        sampler=ScriptedSampler(CODEC, lambda ids, params, session: "<answer>a</answer>"),
        tools=ScriptedTools(lambda tool, arguments: ""),
        grammar=SearchR1Grammar(),
        codec=CODEC,
        limits=RolloutLimits(),
        temperature=1.0,
    )


async def collect(task: JudgedTask, config: RunConfig, step: int = 1):
    return await collect_groups(config, make_spec(task), ItemOrder(ITEMS, seed=0), step, lambda _: None)


async def test_kept_as_they_are_by_default() -> None:
    groups, found = await collect(JudgedTask(), make_config())
    assert [group.kept for group in groups] == [True, True]
    assert found["rollout/uniform_groups"] == 1
    assert not any(name.startswith("filter/") for name in found)


async def test_refills_until_there_are_enough() -> None:
    task = JudgedTask(mixed={item.id for item in ITEMS[:3]})
    groups, found = await collect(task, make_config(kind="drop_uniform", max_refills=20))
    kept = [group for group in groups if group.kept]
    assert len(kept) == 2
    assert all(group.item.id in task.mixed for group in kept)
    assert found["filter/uniform_groups_dropped"] == len(groups) - 2
    assert found["filter/groups_missing"] == 0
    assert found["rollout/dropped_groups"] == 0
    assert len({group.id for group in groups}) == len(groups)
    again, _ = await collect(JudgedTask(mixed=task.mixed), make_config(kind="drop_uniform", max_refills=20))
    assert [group.id for group in again] == [group.id for group in groups], "the same step asks the same questions"


async def test_refills_end() -> None:
    groups, found = await collect(JudgedTask(), make_config(kind="drop_uniform", max_refills=3))
    assert len(groups) == 2 * 4
    assert found["filter/refill_rounds"] == 3
    assert found["filter/groups_missing"] == 2
    sequences, _ = training_sequences(groups, Objective(AlgoConfig()), seed=0)
    assert set(sequences.values()) == {None}


async def test_random_weights_belong_to_the_rollout() -> None:
    groups, _ = await collect(JudgedTask(), make_config())
    objective = Objective(AlgoConfig(token_weight=TokenWeightConfig(kind="random")))
    first, second = (training_sequences(groups, objective, seed=5)[0] for _ in range(2))
    other, _ = training_sequences(groups, objective, seed=6)
    for session, sequence in first.items():
        assert sequence is not None
        assert sequence.drawn_weights is not None
        assert len(sequence.drawn_weights) == sequence.trained
        assert float(sequence.drawn_weights.min()) >= 0.5
        assert float(sequence.drawn_weights.max()) <= 1.5
        assert second[session].drawn_weights.equal(sequence.drawn_weights)  # type: ignore[union-attr]
        assert not other[session].drawn_weights.equal(sequence.drawn_weights)  # type: ignore[union-attr]
    assert len({tuple(s.drawn_weights.tolist()) for s in first.values()}) == len(first)  # type: ignore[union-attr]


async def test_overlong_responses_lose_reward() -> None:
    """The recorded score stays as the task gave it; advantages are made of the shaped one."""
    groups, _ = await collect(JudgedTask(), make_config())
    lengths = [len(t.ledger) for group in groups for t in group.trajectories]
    config = AlgoConfig(advantage="group_mean", overlong=OverlongConfig(buffer_fraction=1.0))
    groups[0].trajectories[0].ledger.observation([1] * 5)  # five tool tokens more than its sibling
    sequences, shaping = training_sequences(groups, Objective(config, max_response_tokens=100), seed=0)
    advantages = [s.advantage for s in sequences.values() if s is not None]
    assert advantages[:2] == pytest.approx([-0.025, 0.025])
    assert advantages[2:] == [0, 0]
    assert shaping["reward/overlong_fraction"] == 1
    assert -1 < shaping["reward/overlong_mean"] < 0
    assert len(set(lengths)) == 1

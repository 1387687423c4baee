"""Each rule fires on its collapse, once, after its patience, and not on a run that learns."""

from __future__ import annotations

import pytest

from agent_rl.config.schema import AlarmConfig
from agent_rl.train.alarm import CollapseAlarm

WELL = {
    "rollout/entropy": 0.5,
    "objective/grad_norm": 1.0,
    "rollout/logp_correct": -0.4,
    "rollout/trajectories": 32.0,
    "rollout/count/invalid_action": 1.0,
    "rollout/uniform_groups": 0.5,
    "reward/mean": 0.1,
}
COLLAPSES = {
    "entropy_low": {"rollout/entropy": 0.005},
    "entropy_high": {"rollout/entropy": 1.6},
    "correct_logp": {"rollout/logp_correct": -1.0},
    "grad_norm": {"objective/grad_norm": 11.0},
    "invalid_actions": {"rollout/count/invalid_action": 16.0},
    "no_signal": {"rollout/uniform_groups": 1.0, "reward/mean": -1.0},
}


def fire(alarm: CollapseAlarm, steps: list[dict[str, float]]) -> list[tuple[int, str]]:
    return [(place, text) for place, found in enumerate(steps) for text in alarm.observe(found)]


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_rule_fires_once_after_its_patience(name: str) -> None:
    alarm = CollapseAlarm(AlarmConfig())
    fired = fire(alarm, [WELL] * 6 + [WELL | COLLAPSES[name]] * 6)
    assert [place for place, _ in fired] == [8], "the third bad step"
    assert fired[0][1].startswith(f"{name}: ")
    assert alarm.metrics() == {f"alarm/{rule}": float(rule == name) for rule in COLLAPSES}
    again = fire(alarm, [WELL] * 2 + [WELL | COLLAPSES[name]] * 3)
    assert [place for place, _ in again] == [4]


@pytest.mark.parametrize("name", COLLAPSES)
def test_two_bad_steps_are_not_a_collapse(name: str) -> None:
    bad = WELL | COLLAPSES[name]
    assert fire(CollapseAlarm(AlarmConfig()), [WELL] * 4 + [bad, bad, WELL] * 5) == []


def test_learning_is_no_collapse() -> None:
    steps = [
        WELL
        | {
            "rollout/entropy": 0.5 * 0.85**step,
            "rollout/logp_correct": -0.4 * 0.95**step,
            "objective/grad_norm": 1.0 + step % 3,
            "rollout/count/invalid_action": 8.0 * 0.8**step,
            "rollout/uniform_groups": min(1.0, step / 12),  # at the end all answers are right
            "reward/mean": 1 - 0.9 * 0.8**step,
        }
        for step in range(18)
    ]
    assert fire(CollapseAlarm(AlarmConfig()), steps) == []


def test_a_metric_that_is_not_there_is_no_evidence() -> None:
    """No correct response in a step: nothing is said about the likelihood of correct ones."""
    without = {key: value for key, value in WELL.items() if key != "rollout/logp_correct"}
    bad = WELL | COLLAPSES["correct_logp"]
    alarm = CollapseAlarm(AlarmConfig())
    assert fire(alarm, [without] * 5 + [WELL] * 4 + [bad, without, bad, without]) == []
    assert len(fire(alarm, [bad])) == 1


def test_a_resumed_run_knows_its_past() -> None:
    steps = [WELL] * 5 + [WELL | COLLAPSES["grad_norm"]] * 2
    alarm = CollapseAlarm(AlarmConfig())
    alarm.replay(steps)
    assert len(alarm.observe(WELL | COLLAPSES["grad_norm"])) == 1


def test_a_knob_moves_its_rule() -> None:
    steps = [WELL] * 4 + [WELL | COLLAPSES["entropy_low"]] * 4
    assert fire(CollapseAlarm(AlarmConfig(entropy_low_fraction=0)), steps) == []
    assert len(fire(CollapseAlarm(AlarmConfig(patience_steps=1)), steps)) == 1
    assert fire(CollapseAlarm(AlarmConfig(baseline_steps=7)), steps) == []

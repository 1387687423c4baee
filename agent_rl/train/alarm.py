"""Collapse alarm: rules over the metrics that turn before the reward does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from agent_rl.config.schema import AlarmConfig

GRAD_NORM_WINDOW_STEPS = 20

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rule:
    """``read`` gives a step's value (None: not measured); ``broken(metrics, value, usual)`` says whether it is bad."""

    name: str
    read: Callable[[Metrics], float | None]
    broken: Callable[[Metrics, float, float], bool]
    meaning: str
    against: Literal["start", "recent", "best"] = "start"


def make_rules(config: AlarmConfig) -> list[Rule]:
    return [
        Rule(
            "entropy_low",
            lambda found: found.get("rollout/entropy"),
            lambda found, value, usual: value < config.entropy_low_fraction * usual,
            "the policy hardly explores any more: a lower learning rate, a higher temperature or a KL term may help",
        ),
        Rule(
            "entropy_high",
            lambda found: found.get("rollout/entropy"),
            lambda found, value, usual: value > config.entropy_high_factor * usual,
            "the policy is falling apart: lower the learning rate and go back to an earlier checkpoint",
        ),
        Rule(
            "correct_logp",
            lambda found: found.get("rollout/logp_correct"),
            lambda found, value, usual: value < usual - config.correct_logp_drop_nats,
            "correct responses are becoming unlikely: updates push away what they should reinforce",
        ),
        Rule(
            "grad_norm",
            lambda found: found.get("objective/grad_norm"),
            lambda found, value, usual: value > config.grad_norm_factor * usual > 0,
            "gradients are exploding: lower the learning rate or look at objective/grad_share_* for rare tokens",
            against="recent",
        ),
        Rule(
            "invalid_actions",
            _invalid_per_trajectory,
            lambda found, value, usual: value > usual + config.invalid_action_rise,
            "turns without a call or an answer are spreading: the policy forgets the tags",
        ),
        Rule(
            "no_signal",
            lambda found: found.get("reward/mean"),
            lambda found, value, usual: found.get("rollout/uniform_groups") == 1 and value < usual,
            "every group has one and the same reward, and a lower mean than before: there is nothing left to learn "
            "from. Go back to an earlier checkpoint with a lower learning rate",
            against="best",
        ),
    ]


def _invalid_per_trajectory(found: Metrics) -> float | None:
    trajectories = found.get("rollout/trajectories")
    return found.get("rollout/count/invalid_action", 0.0) / trajectories if trajectories else None


class CollapseAlarm:
    """Fed with each step's metrics in order. A rule fires once, and again only after it has been well for a while."""

    def __init__(self, config: AlarmConfig) -> None:
        self._config = config
        self._rules = make_rules(config)
        self._seen: dict[str, list[float]] = {rule.name: [] for rule in self._rules}
        self._bad_steps: dict[str, int] = {rule.name: 0 for rule in self._rules}

    def replay(self, steps: Iterable[Metrics]) -> None:
        """Take in the steps of a run that is resumed, without saying anything."""
        for found in steps:
            self.observe(found)

    def observe(self, found: Metrics) -> list[str]:
        """Take in one step; the warnings of the rules that fire at it, each with its evidence."""
        fired = []
        for rule in self._rules:
            value, seen = rule.read(found), self._seen[rule.name]
            if value is None:
                continue
            if len(seen) < self._config.baseline_steps and rule.against != "best":
                seen.append(value)
                continue
            usual = self._usual(rule.against, seen)
            bad = usual is not None and rule.broken(found, value, usual)
            self._bad_steps[rule.name] = self._bad_steps[rule.name] + 1 if bad else 0
            if not (rule.against == "recent" and bad):  # what is bad must not become what is usual
                seen.append(value)
            if self._bad_steps[rule.name] == self._config.patience_steps:
                when = {"start": "at the start", "recent": "in the steps before", "best": "at its best"}[rule.against]
                fired.append(
                    f"{rule.name}: {value:.3g} against {usual:.3g} {when}, for {self._config.patience_steps} steps; "
                    f"{rule.meaning}"
                )
        return fired

    def _usual(self, against: str, seen: list[float]) -> float | None:
        if against == "best":
            return max(seen, default=None)
        return median(seen[-GRAD_NORM_WINDOW_STEPS:] if against == "recent" else seen[: self._config.baseline_steps])

    def metrics(self) -> dict[str, float]:
        """By rule, 1 while it is raised."""
        return {f"alarm/{name}": float(bad >= self._config.patience_steps) for name, bad in self._bad_steps.items()}

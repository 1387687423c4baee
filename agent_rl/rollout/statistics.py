"""What a batch of rollouts looked like, as flat metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev

from agent_rl.rollout.groups import Group
from agent_rl.rollout.ledger import Author
from agent_rl.rollout.timing import time_split
from agent_rl.rollout.trajectory import StopReason, Trajectory


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards over scored trajectories; shares, lengths and times over all of them."""
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    scored = [trajectory for trajectory in everyone if trajectory.score is not None]
    found = {
        "rollout/trajectories": float(len(everyone)),
        "rollout/failed": float(len(everyone) - len(scored)),
        "rollout/retried": float(sum(trajectory.attempts > 1 for trajectory in everyone)),
        "rollout/dropped_groups": float(sum(not group.kept for group in groups)),
        "rollout/uniform_groups": fmean(float(is_uniform(group)) for group in groups) if groups else 0.0,
        "tool/failures": float(sum(t.failure is not None and t.failure.boundary == "tool" for t in everyone)),
    }
    if everyone:
        found |= _shapes(everyone) | time_split(everyone)
    if scored:
        rewards = [trajectory.score.value for trajectory in scored if trajectory.score is not None]
        found["reward/mean"], found["reward/std"] = fmean(rewards), pstdev(rewards)
        for part in sorted({part for t in scored if t.score for part in t.score.parts}):
            found[f"reward/{part}"] = fmean(t.score.parts[part] for t in scored if t.score and part in t.score.parts)
        found |= _likelihoods(scored)
        found["rollout/entropy"] = _sampled_entropy(scored)
    return found


def _shapes(everyone: Sequence[Trajectory]) -> dict[str, float]:
    stops = Counter(trajectory.stop_reason for trajectory in everyone)
    counters: Counter[str] = Counter()
    for trajectory in everyone:
        counters.update(trajectory.counters)
    calls = [turn.tool_s for t in everyone for turn in t.turns if turn.tool is not None]
    found = {
        "rollout/policy_tokens_mean": fmean(t.ledger.count(Author.POLICY) for t in everyone),
        "rollout/tool_tokens_mean": fmean(t.ledger.count(Author.TOOL) for t in everyone),
        "rollout/prompt_tokens_mean": fmean(t.ledger.count(Author.PROMPT) for t in everyone),
        "rollout/turns_mean": fmean(len(t.turns) for t in everyone),
        "rollout/searches_mean": fmean(t.searches for t in everyone),
        "rollout/seconds_mean": fmean(t.seconds for t in everyone),
    }
    found |= {f"rollout/stop/{reason}": stops[reason] / len(everyone) for reason in StopReason}
    found |= {f"rollout/count/{name}": float(count) for name, count in sorted(counters.items())}
    if calls:
        found["tool/latency_mean_s"], found["tool/latency_max_s"] = fmean(calls), max(calls)
    return found


def _sampled_entropy(scored: Sequence[Trajectory]) -> float:
    """-mean log-probability of the tokens as sampled, in nats: an unbiased estimate that needs no forward pass, so
    that it is there also for a step on which nothing was trained."""
    sampled = [-p for t in scored for p, flag in zip(t.ledger.logprobs, t.ledger.loss_mask, strict=True) if flag]
    return fmean(sampled) if sampled else 0.0


def _likelihoods(scored: Sequence[Trajectory]) -> dict[str, float]:
    """Mean log-probability per token, as sampled, of responses with EM and without."""
    found = {}
    for name, wanted in (("correct", 1.0), ("wrong", 0.0)):
        logprobs = [
            logprob
            for t in scored
            if t.score is not None and t.score.parts.get("em") == wanted
            for logprob, flag in zip(t.ledger.logprobs, t.ledger.loss_mask, strict=True)
            if flag
        ]
        if logprobs:
            found[f"rollout/logp_{name}"] = fmean(logprobs)
    return found


def is_uniform(group: Group) -> bool:
    """Whether all scored members got the same reward, so that there is nothing to compare."""
    return len({t.score.value for t in group.scored if t.score is not None}) <= 1

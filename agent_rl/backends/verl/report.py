"""A step's metrics under the names of the embedded backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_rl.algo.diagnostics import metrics_of_sums
from agent_rl.algo.objective import Objective
from agent_rl.backends.verl.loss import read_sums
from agent_rl.rollout.groups import Group
from agent_rl.rollout.statistics import rollout_metrics


def step_metrics(
    objective: Objective,
    groups: Sequence[Group],
    rates: Sequence[float],
    metrics: dict[str, Any],
    timing: Mapping[str, float],
) -> dict[str, float]:
    """``metrics`` and ``timing``: verl's of the step. What our loss put into ``metrics`` is taken out.

    Of an update without gradient (rate 0) nothing but its count is told.
    """
    sums = read_sums(metrics)
    taken = [rate for rate in rates if rate]
    found = rollout_metrics(groups)
    found |= {
        "objective/loss": sums.sums.get("loss", 0.0),
        "objective/grad_norm": float(metrics.get("actor/grad_norm", 0.0)),
        "objective/lr": sum(taken) / len(taken) if taken else 0.0,
        "objective/skipped_updates": float(len(rates) - len(taken)),
        "objective/empty_batch": float(not sums.sums.get("tokens")),
        "objective/trained_tokens": sums.sums.get("tokens", 0.0),
        "time/rollout_s": float(timing.get("gen", 0.0)),
        "time/update_s": float(timing.get("update_actor", 0.0)),
        "time/old_logprobs_s": float(timing.get("old_log_prob", 0.0)),
        "time/reference_s": float(timing.get("ref", 0.0)),
    }
    return found | metrics_of_sums(objective.config, sums)

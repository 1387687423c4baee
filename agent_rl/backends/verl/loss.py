"""The loss that verl's workers run: `Objective.loss` on a micro-batch of verl's, in place of its own `ppo_loss`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from agent_rl.algo.diagnostics import TokenSums, token_sums
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import BatchCounts, TokenBatch
from agent_rl.backends.verl.columns import COUNTS, DRAWN_WEIGHT, SELECTED, Count
from agent_rl.backends.verl.optimizer import set_rate
from agent_rl.config.schema import AlgoConfig

PREFIX = "agent_rl"


@lru_cache(maxsize=4)
def _objective(algo: str, max_response_tokens: int) -> Objective:
    return Objective(AlgoConfig.model_validate_json(algo), max_response_tokens)


def objective_loss(
    model_output: dict[str, Tensor], data: Any, dp_group: Any = None, *, algo: str, max_response_tokens: int
) -> tuple[Tensor, dict[str, Any]]:
    """This micro-batch's share of the loss times the number of data-parallel ranks (FSDP averages over them).

    ``model_output["log_probs"]`` nested [B, T]; ``data`` a TensorDict of B rows with nested response columns [B, R]
    (``response_mask``, ``old_log_probs``, ``advantages``, ``rollout_log_probs``, ``entropy``, and where the objective
    needs them ``ref_log_prob`` and ours) and ``COUNTS`` [B, len(Count)]. The counts are those of the whole optimiser
    batch over all ranks, so cutting and spreading it changes nothing. ``algo`` is the AlgoConfig as JSON.
    """
    from verl.workers.utils.padding import no_padding_2_padding

    objective = _objective(algo, max_response_tokens)
    with torch.autocast(model_output["log_probs"].device.type, enabled=False):
        logp = no_padding_2_padding(model_output["log_probs"], data).float()  # [B, R]
        batch, entropy, rate = token_batch(logp, data, objective)
        out = objective.loss(batch)
        found = token_sums(objective, batch, out, entropy)
    ranks = int(data["dp_size"])
    loss = out.loss * ranks
    found.sums["loss"] = float(out.loss.detach())
    set_rate(rate)
    return loss, _metrics(found, ranks)


def token_batch(logp: Tensor, data: Any, objective: Objective) -> tuple[TokenBatch, Tensor, float]:
    """The trained tokens of a micro-batch, flat, their entropies, and the rate of the update.

    ``logp`` [B, R], padded on the right.
    """
    names = [COUNTS, "response_mask", "old_log_probs", "advantages", "rollout_log_probs", "entropy"]
    names += [name for name in ("ref_log_prob", DRAWN_WEIGHT, SELECTED) if name in data.keys()]  # noqa: SIM118
    padded = data.select(*names).to_padded_tensor()
    mask = padded["response_mask"].bool()
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]
    counts = padded[COUNTS]
    # A row is its own sequence, and its own group here: what its group holds in all stands beside it.
    whole = BatchCounts(
        tokens=int(counts[0, Count.TOKENS]),
        sequences=int(counts[0, Count.SEQUENCES]),
        groups=int(counts[0, Count.GROUPS]),
        tokens_of_sequence=mask.sum(dim=1),
        tokens_of_group=counts[:, Count.TOKENS_OF_GROUP].long(),
    )

    def column(name: str) -> Tensor | None:
        return padded[name][mask] if name in names else None

    selected = column(SELECTED)
    batch = TokenBatch(
        logp=logp[mask],
        logp_old=padded["old_log_probs"][mask],
        advantage=padded["advantages"][mask],
        mask=torch.ones(len(rows), dtype=torch.bool, device=mask.device),
        sequence=rows,
        group=rows,
        counts=whole,
        logp_ref=column("ref_log_prob") if objective.needs_reference else None,
        logp_rollout=padded["rollout_log_probs"][mask],
        drawn_weight=column(DRAWN_WEIGHT),
        selected=None if selected is None else selected.bool(),
    )
    return batch, padded["entropy"][mask], float(counts[0, Count.RATE])


def _metrics(found: TokenSums, ranks: int) -> dict[str, Any]:
    """As verl adds them up: it takes the mean over ranks of a sum."""
    from verl.utils.metric import AggregationType, Metric

    kinds = (
        ("sum", AggregationType.SUM, found.sums),
        ("min", AggregationType.MIN, found.lows or {"weight": float("inf")}),
        ("max", AggregationType.MAX, found.highs or dict.fromkeys(("weight", "ratio", "correction"), float("-inf"))),
    )
    return {
        f"{PREFIX}/{kind}/{name}": Metric(aggregation, value * ranks if kind == "sum" else value)
        for kind, aggregation, values in kinds
        for name, value in values.items()
    }


def read_sums(metrics: dict[str, Any]) -> TokenSums:
    """What the workers' losses reported, out of verl's metrics of a step (where their names begin with ``actor/``).

    Over several updates the sums are means, which ratios of sums do not show. Takes them out of ``metrics``.
    """
    found = TokenSums()
    homes = {"sum": found.sums, "min": found.lows, "max": found.highs}
    for key in [key for key in metrics if key.startswith(f"actor/{PREFIX}/")]:
        kind, name = key.removeprefix(f"actor/{PREFIX}/").split("/")
        homes[kind][name] = float(metrics.pop(key))
    return found

"""Token filters: which trained tokens an update uses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agent_rl.config.schema import TokenFilterConfig


def filter_passes(config: TokenFilterConfig) -> tuple[str, ...]:
    """Names of the updates that one optimiser batch gets, in order."""
    return ("low", "high") if config.kind == "low_then_high" else ("all",)


def select_tokens(config: TokenFilterConfig, update: str, logp_old: Tensor, entropy_old: Tensor) -> Tensor:
    """bool [N] over all trained tokens of an optimiser batch: the ones that ``update`` uses.

    ``high_entropy`` (80/20 rule, arXiv 2506.01939): the ``top_fraction`` with the highest entropy, ties kept.
    ``low_then_high`` (Lopti, arXiv 2505.12929): p_old < eta in the update "low", the others in "high".
    Both come from the policy before the first update, so that they do not change between the two.
    """
    if config.kind == "high_entropy" and entropy_old.numel():
        wanted = math.ceil(config.top_fraction * entropy_old.numel())
        return entropy_old >= entropy_old.topk(wanted).values[-1]
    if config.kind == "low_then_high":
        low = logp_old < math.log(config.eta)
        return low if update == "low" else ~low
    return torch.ones_like(logp_old, dtype=torch.bool)

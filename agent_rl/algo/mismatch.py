"""Correction for a rollout engine whose numerics differ from the trainer's."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_rl.algo.sequences import sequence_sum
from agent_rl.config.schema import MismatchConfig

LOG_CLAMP = 20.0  # e^20 is far above any cap, and finite in float32


def mismatch_correction(
    config: MismatchConfig, logp_old: Tensor, logp_rollout: Tensor, mask: Tensor, sequence: Tensor
) -> Tensor:
    """Factor [N] of the policy term, detached: pi_old / pi_rollout, truncated or masked at ``cap``.

    ``token_tis`` and ``sequence_tis``: min(ratio, cap) (truncated importance sampling). ``token_mis`` and
    ``sequence_mis``: the ratio, and 0 above ``cap`` (masked importance sampling). The ratio of a sequence is the
    product of its tokens'. Counts of the aggregate do not change.
    """
    if config.kind == "none":
        return torch.ones_like(logp_old)
    log_ratio = (logp_old - logp_rollout).detach()
    if config.kind.startswith("sequence"):
        log_ratio = sequence_sum(log_ratio, mask, sequence)
    ratio = log_ratio.clamp(-LOG_CLAMP, LOG_CLAMP).exp()
    if config.kind.endswith("tis"):
        return ratio.clamp(max=config.cap)
    return torch.where(ratio <= config.cap, ratio, 0.0)

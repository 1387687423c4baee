"""What an objective computes on: flat tokens, no padding.

Letters: N tokens of a micro-batch, S its sequences, P prompts (groups) of the whole optimiser batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COLUMNS = (
    *("logp_old", "advantage", "mask", "sequence", "group"),
    *("logp_ref", "logit", "logp_rollout", "drawn_weight", "selected"),
)


@dataclass(slots=True)
class TokenBatch:
    """Tokens of some sequences, one after the other.

    ``logp`` [N] current policy (with gradient), ``logp_old`` [N], ``logp_ref`` [N] or None, ``advantage`` [N],
    ``mask`` bool [N] (True = written by the policy and trained), ``sequence`` long [N] in [0, S) and ``group``
    long [N] index the counts below. ``logit`` [N] is the sampled token's logit, needed by
    ``token_weight.form=raw_logit`` alone; ``logp_rollout`` [N], the sampler's log-probability, by
    ``mismatch``; ``drawn_weight`` [N] by ``token_weight.kind=random``. ``selected`` bool [N] is the token filter's
    choice (None: every trained token); the counts do not depend on it.

    All log-probabilities are natural logs at the sampling temperature.
    """

    logp: Tensor
    logp_old: Tensor
    advantage: Tensor
    mask: Tensor
    sequence: Tensor
    group: Tensor
    counts: BatchCounts
    logp_ref: Tensor | None = None
    logit: Tensor | None = None
    logp_rollout: Tensor | None = None
    drawn_weight: Tensor | None = None
    selected: Tensor | None = None

    def __post_init__(self) -> None:
        size = self.logp.shape
        for name in COLUMNS:
            value = getattr(self, name)
            if value is not None and value.shape != size:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, logp has {tuple(size)}")
        if self.mask.dtype is not torch.bool:
            raise ValueError(f"mask must be bool (True = trained), got {self.mask.dtype}")


@dataclass(slots=True)
class BatchCounts:
    """Counts over the whole optimiser batch, the same for each of its micro-batches and ranks.

    ``tokens``: trained tokens. ``sequences``: sequences with a trained token. ``groups``: groups with one.
    ``tokens_of_sequence`` [S] and ``tokens_of_group`` [P] are indexed by TokenBatch.sequence and .group.
    """

    tokens: int
    sequences: int
    groups: int
    tokens_of_sequence: Tensor
    tokens_of_group: Tensor

    @classmethod
    def of(cls, mask: Tensor, sequence: Tensor, group: Tensor) -> BatchCounts:
        """Count a whole optimiser batch given flat (mask, sequence, group), each [N]."""
        ones = mask.to(torch.long)
        size_s = int(sequence.max()) + 1 if sequence.numel() else 0
        size_g = int(group.max()) + 1 if group.numel() else 0
        of_sequence = torch.zeros(size_s, dtype=torch.long).index_add_(0, sequence, ones)
        of_group = torch.zeros(size_g, dtype=torch.long).index_add_(0, group, ones)
        return cls(
            tokens=int(ones.sum()),
            sequences=int((of_sequence > 0).sum()),
            groups=int((of_group > 0).sum()),
            tokens_of_sequence=of_sequence,
            tokens_of_group=of_group,
        )


@dataclass(slots=True)
class LossOutput:
    """``loss``: scalar, to be summed over micro-batches. Per-token terms [N] are detached, 0 where masked."""

    loss: Tensor
    weight: Tensor
    ratio: Tensor
    policy_term: Tensor
    kl_term: Tensor
    token_loss: Tensor
    correction: Tensor  # of the sampler's mismatch
    clipped: Tensor  # bool: the surrogate's clip holds the token

"""From token losses to one number: each token's share of the whole optimiser batch."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_rl.algo.records import BatchCounts


def token_shares(
    sequence: Tensor,
    group: Tensor,
    counts: BatchCounts,
    *,
    kind: str,
    constant_length_tokens: int | None = None,
) -> Tensor:
    """Factor [N] by which each trained token's loss enters the sum; counts are masks', never sums of w.

    ``token_mean`` 1 / tokens of the batch. ``group_token_mean`` (Eq. 5 / 9) 1 / (groups * tokens of its group).
    ``sequence_mean`` (original GRPO) 1 / (sequences * tokens of its sequence). ``constant_length`` (Dr. GRPO)
    1 / (sequences * constant). A batch without trained tokens gives zeros, never 0 / 0.
    """
    if counts.tokens == 0:
        return torch.zeros(sequence.shape, dtype=torch.float64, device=sequence.device)
    if kind == "token_mean":
        shares = torch.full(sequence.shape, 1.0 / counts.tokens, dtype=torch.float64, device=sequence.device)
    elif kind == "group_token_mean":
        of_group = counts.tokens_of_group.to(sequence.device).clamp(min=1)
        shares = 1.0 / (counts.groups * of_group[group].double())
    elif kind == "sequence_mean":
        of_sequence = counts.tokens_of_sequence.to(sequence.device).clamp(min=1)
        shares = 1.0 / (counts.sequences * of_sequence[sequence].double())
    elif kind == "constant_length":
        if constant_length_tokens is None:
            raise ValueError("aggregate=constant_length needs constant_length_tokens")
        shares = torch.full(
            sequence.shape,
            1.0 / (counts.sequences * constant_length_tokens),
            dtype=torch.float64,
            device=sequence.device,
        )
    else:
        raise ValueError(f"aggregate={kind!r} is not known")
    return shares

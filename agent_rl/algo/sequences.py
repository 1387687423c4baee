"""Statistics of whole sequences over flat tokens. A sequence is never cut: it lies within one micro-batch."""

from __future__ import annotations

from torch import Tensor


def sequence_sum(values: Tensor, mask: Tensor, sequence: Tensor) -> Tensor:
    """For each token [N], the sum over the trained tokens of its sequence."""
    size = int(sequence.max()) + 1 if sequence.numel() else 0
    sums = values.new_zeros(size).index_add(0, sequence, values * mask)
    return sums[sequence]


def sequence_mean(values: Tensor, mask: Tensor, sequence: Tensor) -> Tensor:
    """For each token [N], the mean over the trained tokens of its sequence (0 where it has none)."""
    counts = sequence_sum(values.new_ones(values.shape), mask, sequence)
    return sequence_sum(values, mask, sequence) / counts.clamp(min=1)

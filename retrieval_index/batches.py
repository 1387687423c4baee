"""Batches of texts of about the same length, so that little of what is computed is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

# Padded tokens of a batch on a CPU: fewer leave the matrix products too thin, more only add padding and memory traffic
# (measured with MiniLM: 256 to 512 are best for questions and passages alike)
CPU_BATCH_TOKENS = 512


def batches_by_length(lengths: Sequence[int], most_texts: int, most_tokens: int | None) -> Iterator[list[int]]:
    """Places of the texts of each batch, shortest texts first: at most ``most_texts``, and at most ``most_tokens`` once
    padded to the longest (a longer text is a batch by itself).
    """
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    batch: list[int] = []
    for place in order:
        padded = (len(batch) + 1) * lengths[place]
        if batch and (len(batch) == most_texts or (most_tokens is not None and padded > most_tokens)):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def padded(ids: Sequence[Sequence[int]], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """(token ids, mask), both int64 [B, T], padded on the right; mask 1 = a token."""
    longest = max(map(len, ids))
    tokens = np.full((len(ids), longest), pad_id, dtype=np.int64)
    mask = np.zeros((len(ids), longest), dtype=np.int64)
    for row, text in enumerate(ids):
        tokens[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return tokens, mask

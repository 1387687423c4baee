"""Ranked rows, and the fusion of two rankings."""

from __future__ import annotations

from collections.abc import Sequence

# (row of the store, score), best first
Ranked = list[tuple[int, float]]

# Cormack, Clarke, Buettcher (SIGIR 2009), "Reciprocal rank fusion": k = 60 in their experiments, and since
RRF_K = 60


def reciprocal_rank_fusion(rankings: Sequence[Ranked], k: int) -> Ranked:
    """The ``k`` best rows by the sum over rankings of 1 / (60 + rank), rank from 1; equal sums by lower row."""
    sums: dict[int, float] = {}
    for ranking in rankings:
        for rank, (row, _) in enumerate(ranking, start=1):
            sums[row] = sums.get(row, 0.0) + 1 / (RRF_K + rank)
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:k]

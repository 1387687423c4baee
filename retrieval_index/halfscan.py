"""Exact search of a flat index in two passes: all vectors in bfloat16, then the best of them in float32.

The first pass reads half the memory and runs on the processor's bfloat16 units; what it may have missed is bounded, and
a query for which the bound leaves a doubt is searched by FAISS. So the rows are those of a float32 search.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Candidates of the first pass, at least; more of them make a doubt rarer
CANDIDATES = 64
# Vectors multiplied at once: 64 queries then take 8 MiB of scores
BLOCK = 65_536
# Relative error of rounding to bfloat16 (8 bits of mantissa, to nearest)
ROUNDING = 2.0**-9
# Rounding of one float32 addition; a product of D numbers has D of them
ADDITION = 2.0**-24
# What `auto` may spend on the bfloat16 copy
AUTO_BYTES = 2**30


def can_scan(index: Any, mmap: bool) -> bool:
    """Whether the index has its vectors as float32 in memory, for inner products."""
    import faiss

    return isinstance(index, faiss.IndexFlat) and index.metric_type == faiss.METRIC_INNER_PRODUCT and not mmap


def pays(index: Any) -> bool:
    """Whether ``auto`` takes it: on a processor that multiplies bfloat16, where the copy is small."""
    import torch

    processor = torch.cpu.get_capabilities()
    fast = bool(processor.get("avx512_bf16") or processor.get("amx_bf16"))
    return fast and 0 < 2 * index.ntotal * index.d <= AUTO_BYTES


class HalfScan:
    """Over the vectors of a FAISS flat inner-product index, which must stay as it is. Takes 2 bytes a number more."""

    def __init__(self, index: Any) -> None:
        import faiss
        import torch

        self._index = index
        count, dims = index.ntotal, index.d
        # the index's own memory, not a copy
        self._full: np.ndarray = faiss.rev_swig_ptr(index.get_xb(), count * dims).reshape(count, dims)
        self._half = torch.empty((count, dims), dtype=torch.bfloat16)
        longest = 0.0
        for start in range(0, count, BLOCK):
            block = self._full[start : start + BLOCK]
            self._half[start : start + BLOCK] = torch.from_numpy(block)
            longest = max(longest, float(np.linalg.norm(block, axis=1).max()))
        self._longest = longest
        self.doubted = 0  # queries that were searched again by FAISS

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Like FAISS: (scores float32 [B, k], rows int64 [B, k]), best first; equal scores by lower row.

        ``k`` is at most the number of vectors.
        """
        count = self._index.ntotal
        wanted = min(count, max(CANDIDATES, 2 * k))
        rough, rows = self._first_pass(queries, wanted)
        exact = np.einsum("bd,bcd->bc", queries, self._full[rows])
        order = np.lexsort((rows, -exact), axis=1)[:, :k]
        scores, found = np.take_along_axis(exact, order, axis=1), np.take_along_axis(rows, order, axis=1)
        if wanted < count:
            # A row outside the candidates scores at most what the last candidate was thought to score, and the error:
            # both vectors were rounded (Cauchy-Schwarz), and so was their product.
            lengths = np.linalg.norm(queries, axis=1)
            last = rough[:, -1]
            error = (
                2 * ROUNDING + ROUNDING**2 + queries.shape[1] * ADDITION
            ) * lengths * self._longest + ROUNDING * np.abs(last)
            doubtful = np.flatnonzero(scores[:, -1] < last + error)
            if len(doubtful):
                self.doubted += len(doubtful)
                scores[doubtful], found[doubtful] = self._index.search(np.ascontiguousarray(queries[doubtful]), k)
        return scores, found

    def _first_pass(self, queries: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        """(bfloat16 scores as float32, rows) of the best ``wanted``, [B, wanted], best first."""
        import torch

        with torch.inference_mode():
            half = torch.from_numpy(queries).to(torch.bfloat16)
            best: tuple[torch.Tensor, torch.Tensor] | None = None
            for start in range(0, len(self._half), BLOCK):
                scores = half @ self._half[start : start + BLOCK].T
                top = torch.topk(scores, min(wanted, scores.shape[1]), dim=1)
                values, rows = top.values, top.indices + start
                if best is not None:
                    values, rows = torch.cat([best[0], values], 1), torch.cat([best[1], rows], 1)
                    kept = torch.topk(values, min(wanted, values.shape[1]), dim=1)
                    values, rows = kept.values, torch.gather(rows, 1, kept.indices)
                best = values, rows
            assert best is not None  # an index is never empty
            return best[0].float().numpy(), best[1].numpy()

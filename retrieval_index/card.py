"""Measuring an index that was just built: recall against exact search, self-retrieval, speed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from retrieval_index.corpus import PassageStore
from retrieval_index.encoder import TextEncoder
from retrieval_index.errors import EncoderError
from retrieval_index.index import IndexCard, vector_blocks

SAMPLED_QUERIES = 64
SELF_RETRIEVAL_TITLES = 16
RECALL_AT = (1, 3, 10)
QUERIES_PER_BATCH = 32
# two scores closer than this are a tie: which of two equal passages comes first says nothing about an index
TIE = 1e-5


def measure(model: TextEncoder, index: Any, store: PassageStore, build_seconds: float, size_bytes: int) -> IndexCard:
    """The card of an index. Raises EncoderError where no title finds its own passage: encoder and index do
    not fit together, and every search would return noise.
    """
    rows = _spread(len(store), SAMPLED_QUERIES)
    queries = [_query_of(store[row].title, store[row].text) for row in rows]
    depth = min(max(RECALL_AT), index.ntotal)
    started = time.monotonic()
    vectors, scores = [], []
    for start in range(0, len(queries), QUERIES_PER_BATCH):
        batch = model.encode_queries(queries[start : start + QUERIES_PER_BATCH])
        vectors.append(batch)
        scores.append(index.search(batch, depth)[0])
    seconds = time.monotonic() - started
    asked, found = self_retrieval(model, index, store)
    if asked and not found:
        raise EncoderError(
            f"none of {asked} titles finds a passage of its own in the top 10: "
            f"encoder.path={model.spec.path!r} cannot search this corpus "
            "(wrong prefixes or pooling, or a damaged model)"
        )
    return IndexCard(
        bytes=size_bytes,
        build_seconds=round(build_seconds, 3),
        sampled_queries=len(queries),
        recall=recall(np.concatenate(scores), exact_scores(index, np.concatenate(vectors), depth)),
        self_retrieval=(asked, found),
        queries_per_s=round(len(queries) / max(seconds, 1e-9), 1),
    )


def exact_scores(index: Any, queries: np.ndarray, k: int) -> np.ndarray:
    """The k best inner products of each query [B, k], best first, by plain multiplication, block by block."""
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for _, block in vector_blocks(index):
        both = np.concatenate([best, queries @ block.T], axis=1)
        best = -np.sort(np.partition(-both, k - 1, axis=1)[:, :k], axis=1)
    return best


def recall(found: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Share of each query's first k hits that score as high as the exact k-th; both [B, depth], best
    first.
    """
    depth = exact.shape[1]
    return {
        str(at): round(float((found[:, : min(at, depth)] >= exact[:, [min(at, depth) - 1]] - TIE).mean()), 4)
        for at in RECALL_AT
    }


def self_retrieval(model: TextEncoder, index: Any, store: PassageStore) -> tuple[int, int]:
    """How many titles were asked, and how many found a passage of the same title in the top 10.

    A library change that breaks pooling or prefixes makes every query return the same passages; this shows
    it.
    """
    titles = [title for row in _spread(len(store), SELF_RETRIEVAL_TITLES) if (title := store[row].title).strip()]
    if not titles:
        return 0, 0
    rows = index.search(model.encode_queries(titles), min(10, index.ntotal))[1]
    found = sum(
        any(store[int(row)].title == title for row in ten if row >= 0) for title, ten in zip(titles, rows, strict=True)
    )
    return len(titles), found


def _spread(rows: int, count: int) -> list[int]:
    """``count`` row numbers, evenly spaced over the corpus (all rows where it has fewer)."""
    return np.unique(np.linspace(0, rows - 1, min(count, rows)).astype(np.int64)).tolist()


def _query_of(title: str, text: str) -> str:
    return title if title.strip() else " ".join(text.split()[:12])

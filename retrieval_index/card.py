"""Measuring an index that was just built: recall against exact search, self-retrieval, speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from retrieval_index.bm25 import BM25Searcher
from retrieval_index.corpus import PassageStore
from retrieval_index.dense import DenseSearcher
from retrieval_index.errors import EncoderError
from retrieval_index.index import IndexCard

SAMPLED_QUERIES = 64
SELF_RETRIEVAL_TITLES = 16
RECALL_AT = (1, 3, 10)
QUERIES_PER_BATCH = 32
# two scores closer than this are a tie: which of two equal passages comes first says nothing about an index
TIE = 1e-5

# (first row, float32 vectors [<= M, D]) of consecutive rows
Blocks = Iterable[tuple[int, np.ndarray]]


def measure(
    searcher: DenseSearcher | BM25Searcher,
    store: PassageStore,
    build_seconds: float,
    size_bytes: int,
    vectors: Callable[[], Blocks] | None = None,
) -> IndexCard:
    """The card of an index. ``vectors`` are those that it was built from; without them recall is not measured.

    Raises EncoderError where no title finds its own passage: encoder and index do not fit together, and every search
    would return noise.
    """
    queries = [_query_of(store[row].title, store[row].text) for row in _spread(len(store), SAMPLED_QUERIES)]
    depth = min(max(RECALL_AT), len(store))
    started = time.monotonic()
    found: list[list[int]] = []
    for start in range(0, len(queries), QUERIES_PER_BATCH):
        ranked = searcher.rank(queries[start : start + QUERIES_PER_BATCH], depth)
        found += [[row for row, _ in rows or []] for rows in ranked]
    seconds = time.monotonic() - started
    asked, hits = self_retrieval(searcher, store)
    if asked and not hits and isinstance(searcher, DenseSearcher):
        raise EncoderError(
            f"none of {asked} titles finds a passage of its own in the top 10: "
            f"encoder.path={searcher.encoder.spec.path!r} cannot search this corpus "
            "(wrong prefixes or pooling, or a damaged model)"
        )
    shares: dict[str, float] = {}
    if vectors is not None and isinstance(searcher, DenseSearcher):
        encoded = searcher.encoder.encode_queries(queries)
        true_scores, exact = true_and_exact_scores(vectors(), encoded, padded(found, depth), depth)
        shares = recall(true_scores, exact)
    return IndexCard(
        bytes=size_bytes,
        build_seconds=round(build_seconds, 3),
        sampled_queries=len(queries),
        recall=shares,
        self_retrieval=(asked, hits),
        queries_per_s=round(len(queries) / max(seconds, 1e-9), 1),
    )


def padded(found: list[list[int]], depth: int) -> np.ndarray:
    """Rows [B, depth], -1 where a search found fewer."""
    return np.array([rows[:depth] + [-1] * (depth - len(rows)) for rows in found], dtype=np.int64)


def true_and_exact_scores(
    blocks: Blocks, queries: np.ndarray, rows: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """(inner products of ``rows`` [B, k] with their queries, the k best of all rows, best first), both float32 [B, k].

    By plain multiplication, block by block: what an index says of its own scores is not believed.
    """
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    true = np.full(rows.shape, -np.inf, dtype=np.float32)
    for first, block in blocks:
        scores = queries @ block.T
        inside = (rows >= first) & (rows < first + len(block))
        query, place = np.nonzero(inside)
        true[query, place] = scores[query, rows[query, place] - first]
        both = np.concatenate([best, scores], axis=1)
        best = -np.sort(np.partition(-both, k - 1, axis=1)[:, :k], axis=1)
    return true, best


def recall(found: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Share of each query's first k hits that truly score as high as the exact k-th; both [B, depth], ``exact`` best
    first.
    """
    depth = exact.shape[1]
    return {
        str(at): round(float((found[:, : min(at, depth)] >= exact[:, [min(at, depth) - 1]] - TIE).mean()), 4)
        for at in RECALL_AT
    }


def self_retrieval(searcher: DenseSearcher | BM25Searcher, store: PassageStore) -> tuple[int, int]:
    """How many titles were asked, and how many found a passage of the same title in the top 10.

    A library change that breaks pooling or prefixes makes every query return the same passages; this shows
    it.
    """
    titles = [title for row in _spread(len(store), SELF_RETRIEVAL_TITLES) if (title := store[row].title).strip()]
    if not titles:
        return 0, 0
    ranked = searcher.rank(titles, min(10, len(store)))
    found = sum(
        any(store[row].title == title for row, _ in rows or []) for title, rows in zip(titles, ranked, strict=True)
    )
    return len(titles), found


def _spread(rows: int, count: int) -> list[int]:
    """``count`` row numbers, evenly spaced over the corpus (all rows where it has fewer)."""
    return np.unique(np.linspace(0, rows - 1, min(count, rows)).astype(np.int64)).tolist()


def _query_of(title: str, text: str) -> str:
    return title if title.strip() else " ".join(text.split()[:12])

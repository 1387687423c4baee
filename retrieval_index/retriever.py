"""Search over an index folder: dense, BM25, or both fused; then reranked, where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from retrieval_index.bm25 import BM25Searcher
from retrieval_index.corpus import PassageStore
from retrieval_index.dense import DenseSearcher, Scan
from retrieval_index.encoder import Dtype, Encoder, EncoderSpec, Engine, TextEncoder
from retrieval_index.errors import EncoderError, IndexIncomplete, IndexMismatch
from retrieval_index.index import BM25_DIR, IndexManifest, manifest_sha256, read_manifest
from retrieval_index.ranking import Ranked, reciprocal_rank_fusion
from retrieval_index.rerank import PairScorer

# FAISS on a GPU gives at most 2048 neighbours; the same limit everywhere keeps an index portable
MAX_K = 2048
# How deep each of two rankings is read before they are fused: beyond, a sum of reciprocal ranks hardly changes
FUSED_DEPTH = 100

Mode = Literal["dense", "bm25", "hybrid"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One passage found. ``score``: dense, the inner product of the two vectors (cosine where normalised); bm25, that
    of Lucene; hybrid, the sum of reciprocal ranks; reranked, the cross-encoder's.
    """

    id: str
    score: float
    title: str
    text: str


class Retriever:
    """One owner at a time, since the encoder and the cross-encoder have to have one."""

    def __init__(
        self,
        manifest: IndexManifest,
        manifest_sha: str,
        store: PassageStore,
        searchers: Sequence[DenseSearcher | BM25Searcher],
        *,
        mode: Mode,
        reranker: PairScorer | None = None,
        rerank_depth: int = 50,
    ) -> None:
        self.manifest, self.manifest_sha, self.mode = manifest, manifest_sha, mode
        self._store, self._searchers = store, searchers
        self._reranker, self._rerank_depth = reranker, rerank_depth

    @classmethod
    def open(
        cls,
        path: str | Path,
        encoder: EncoderSpec | TextEncoder | None = None,
        *,
        mode: Mode | None = None,
        mmap: bool = False,
        scan: Scan = "auto",
        engine: Engine = "torch",
        dtype: Dtype | None = None,
        reranker: PairScorer | None = None,
        rerank_depth: int = 50,
    ) -> Retriever:
        """Open an index with the encoder it was built with, or with ``encoder`` where it is the same one.

        ``mode``: None takes dense where the index is, else bm25. ``mmap`` leaves the vectors on disk. ``scan``: see
        `DenseSearcher`. ``engine`` and ``dtype`` are what the index's own encoder runs in, for queries (None: the
        dtype it was built with). ``reranker`` orders the first ``rerank_depth`` anew.

        Raises IndexNotFound; IndexIncomplete (a part is missing, or rows and vectors differ in number); IndexMismatch
        (another encoder record, other weights, or a mode or ``scan`` that the index does not have); BM25Unavailable;
        EncoderError.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        if mode is None:
            mode = "dense" if manifest.encoder is not None else "bm25"
        if mode not in get_args(Mode):
            raise IndexMismatch(f"search.mode={mode!r}: must be one of {', '.join(get_args(Mode))}")
        store = PassageStore(folder)
        if len(store) != manifest.passages:
            raise IndexIncomplete(
                f"{store.path} has {len(store)} passages, and the manifest (so index.faiss too) says "
                f"{manifest.passages} passages and {manifest.passages} vectors; these files do not belong together, "
                "build the index again"
            )
        searchers: list[DenseSearcher | BM25Searcher] = []
        if mode != "bm25":
            searchers.append(
                DenseSearcher.open(folder, manifest, encoder, mmap=mmap, scan=scan, engine=engine, dtype=dtype)
            )
        if mode != "dense":
            if not manifest.bm25:
                raise IndexMismatch(f"index {folder} has no BM25 part; build it with index.bm25=true for mode={mode}")
            searchers.append(BM25Searcher(folder / BM25_DIR, manifest.passages))
        sha = manifest_sha256(folder)
        return cls(manifest, sha, store, searchers, mode=mode, reranker=reranker, rerank_depth=rerank_depth)

    def replica(self, reranker: PairScorer | None = None) -> Retriever:
        """For another owner: an encoder, and ``reranker``, of its own over the same index, which any number may read.

        Raises IndexMismatch where Lucene is searched too, or where the encoder is not ours to load once more.
        """
        (first, *others) = self._searchers
        if others or isinstance(first, BM25Searcher):
            raise IndexMismatch(f"search.mode={self.mode} with more than one replica; replicas need search.mode=dense")
        if not isinstance(first.encoder, Encoder):
            raise IndexMismatch(f"a replica needs a sentence-transformers encoder, not {type(first.encoder).__name__}")
        searcher = DenseSearcher(first.encoder.replica(), first.index, first.scan)
        return Retriever(
            self.manifest,
            self.manifest_sha,
            self._store,
            [searcher],
            mode=self.mode,
            reranker=reranker,
            rerank_depth=self._rerank_depth,
        )

    def __len__(self) -> int:
        return len(self._store)

    @property
    def computes(self) -> str | None:
        """What runs the queries' encoder and in which precision ("onnx, float32"); None without one."""
        return next((one.encoder.computes for one in self._searchers if isinstance(one, DenseSearcher)), None)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best ``k`` passages of each query, best first; fewer where the index has, or finds, fewer.

        An empty query has no hits. Raises ValueError (``k`` below 1 or above MAX_K) and EncoderError (the
        encoder gave a query something that is not a vector; the message quotes it).
        """
        found = self.search_each(queries, k)
        for query, hits in zip(queries, found, strict=True):
            if hits is None:
                raise EncoderError(f"the encoder gave no finite vector for the query {query!r}")
        return [hits for hits in found if hits is not None]

    def search_each(self, queries: Sequence[str], k: int) -> list[list[Hit] | None]:
        """Like :meth:`search`, but a query whose vector is not finite is None and does not harm its
        neighbours.
        """
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAX_K:
            raise ValueError(f"k={k!r}: must be a whole number from 1 to {MAX_K}")
        asked = [place for place, query in enumerate(queries) if query.strip()]
        results: list[list[Hit] | None] = [[] for _ in queries]
        if not asked:
            return results
        texts = [queries[place] for place in asked]
        wanted = k if self._reranker is None else min(max(k, self._rerank_depth), MAX_K)
        ranked = self._rank(texts, wanted)
        hits = [None if rows is None else [self._hit(row, score) for row, score in rows] for rows in ranked]
        if self._reranker is not None:
            hits = _reranked(self._reranker, texts, hits)
        for place, found in zip(asked, hits, strict=True):
            results[place] = None if found is None else found[:k]
        return results

    def _rank(self, queries: list[str], k: int) -> list[Ranked | None]:
        if len(self._searchers) == 1:
            return self._searchers[0].rank(queries, k)
        depth = min(max(k, FUSED_DEPTH), MAX_K)
        both = zip(*(searcher.rank(queries, depth) for searcher in self._searchers), strict=True)
        return [
            None if any(ranking is None for ranking in rankings) else reciprocal_rank_fusion(list(rankings), k)
            for rankings in both
        ]

    def _hit(self, row: int, score: float) -> Hit:
        passage = self._store[row]
        return Hit(passage.id, score, passage.title, passage.text)


def _reranked(reranker: PairScorer, queries: list[str], hits: list[list[Hit] | None]) -> list[list[Hit] | None]:
    """The hits of each query, ordered by the cross-encoder; all pairs of a batch are scored at once."""
    pairs = [
        (query, f"{hit.title}\n{hit.text}" if hit.title else hit.text)
        for query, found in zip(queries, hits, strict=True)
        for hit in found or []
    ]
    scores = iter(np.asarray(reranker.score(pairs), dtype=float).tolist() if pairs else [])
    ordered: list[list[Hit] | None] = []
    for found in hits:
        if found is None:
            ordered.append(None)
            continue
        scored = [Hit(hit.id, next(scores), hit.title, hit.text) for hit in found]
        ordered.append(sorted(scored, key=lambda hit: -hit.score))
    return ordered

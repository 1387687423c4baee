"""BM25 by Lucene, through pyserini. A document's id in Lucene is its row in the passage store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from retrieval_index.corpus import PassageStore
from retrieval_index.errors import IndexIncomplete
from retrieval_index.java import load_lucene
from retrieval_index.ranking import Ranked

PASSAGES_PER_BATCH = 2048
# What Anserini calls its defaults for BM25 on passages
K1, B = 0.9, 0.4


def build_bm25(store: PassageStore, folder: Path, tick: Callable[[int], None] = lambda _: None) -> None:
    """Write a Lucene index (Porter stemming, English stop words) of the passages into ``folder``.

    Raises BM25Unavailable.
    """
    load_lucene()
    from pyserini.index.lucene import LuceneIndexer

    indexer = LuceneIndexer(str(folder), threads=os.cpu_count() or 1)
    try:
        for start in range(0, len(store), PASSAGES_PER_BATCH):
            rows = range(start, min(start + PASSAGES_PER_BATCH, len(store)))
            indexer.add_batch_dict([{"id": str(row), "contents": store[row].contents} for row in rows])
            tick(len(rows))
    finally:
        indexer.close()


class BM25Searcher:
    """Safe for several threads: Lucene's searcher is."""

    def __init__(self, folder: Path, passages: int) -> None:
        """Raises BM25Unavailable, IndexIncomplete (no Lucene index there, or one of another number of passages)."""
        load_lucene()
        from pyserini.search.lucene import LuceneSearcher

        try:
            self._searcher = LuceneSearcher(str(folder))
            found = self._searcher.num_docs
        except Exception as error:  # a Java exception, wrapped by pyjnius
            raise IndexIncomplete(f"{folder} is no whole Lucene index ({error}); build the index again") from error
        if found != passages:
            raise IndexIncomplete(
                f"{folder} has {found} documents and the corpus {passages} passages; build the index again"
            )
        self._searcher.set_bm25(K1, B)

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked | None]:
        """The best rows of each query; none where no word of it is in the index."""
        names = [str(place) for place in range(len(queries))]
        found = self._searcher.batch_search(list(queries), names, k=k, threads=os.cpu_count() or 1)
        return [[(int(hit.docid), float(hit.score)) for hit in found.get(name, [])] for name in names]

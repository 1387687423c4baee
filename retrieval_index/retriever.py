"""Search over an index folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index.corpus import PassageStore
from retrieval_index.encoder import Encoder, EncoderSpec, TextEncoder
from retrieval_index.errors import EncoderError, IndexIncomplete, IndexMismatch
from retrieval_index.index import (
    INDEX_FILE,
    IndexManifest,
    manifest_sha256,
    read_faiss,
    read_manifest,
)

# FAISS on a GPU gives at most 2048 neighbours; the same limit everywhere keeps an index portable
MAX_K = 2048


@dataclass(frozen=True, slots=True)
class Hit:
    """One passage found. ``score`` is the inner product of the two vectors (cosine where normalised)."""

    id: str
    score: float
    title: str
    text: str


class Retriever:
    """One owner at a time: neither the encoder nor a FAISS index on a GPU may be used by two threads at
    once.
    """

    def __init__(
        self,
        manifest: IndexManifest,
        manifest_sha: str,
        encoder: TextEncoder,
        index: Any,
        store: PassageStore,
    ) -> None:
        self.manifest, self.manifest_sha = manifest, manifest_sha
        self._encoder, self._index, self._store = encoder, index, store

    @classmethod
    def open(cls, path: str | Path, encoder: EncoderSpec | TextEncoder | None = None) -> Retriever:
        """Open an index with the encoder it was built with, or with ``encoder`` where it is the same one.

        Raises IndexNotFound; IndexIncomplete (a part is missing, or rows and vectors differ in number);
        IndexMismatch (another encoder record, or other weights); EncoderError.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        store, index = PassageStore(folder), read_faiss(folder)
        if not len(store) == index.ntotal == manifest.passages:
            raise IndexIncomplete(
                f"{store.path} has {len(store)} passages, {folder / INDEX_FILE} has {index.ntotal} vectors, "
                f"and the manifest says {manifest.passages}; these files do not belong together, "
                "build the index again"
            )
        if isinstance(encoder, EncoderSpec):
            _same_spec(manifest.encoder, encoder, folder)
            encoder = Encoder(encoder)
        elif encoder is None:
            encoder = Encoder(manifest.encoder)
        else:
            _same_spec(manifest.encoder, encoder.spec, folder)
        if encoder.fingerprint != manifest.encoder_fingerprint:
            raise IndexMismatch(
                f"index {folder} was built with weights of sha256 {manifest.encoder_fingerprint} "
                f"(encoder.path={manifest.encoder.path!r}), but encoder.path={encoder.spec.path!r} has "
                f"sha256 {encoder.fingerprint}; use the model it was built with, or build the index again"
            )
        if not encoder.dims == index.d == manifest.dims:
            raise IndexIncomplete(
                f"the encoder gives {encoder.dims} dims, {folder / INDEX_FILE} has {index.d}, the manifest "
                f"says {manifest.dims}; build the index again"
            )
        return cls(manifest, manifest_sha256(folder), encoder, index, store)

    def __len__(self) -> int:
        return self._index.ntotal

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best ``k`` passages of each query, best first; all of them where the index has fewer than
        ``k``.

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
        vectors = self._encoder.encode_queries([queries[place] for place in asked])
        # FAISS answers a vector with NaN in it by ids of -1, without a word
        finite = np.isfinite(vectors).all(axis=1)
        for place in np.asarray(asked)[~finite]:
            results[place] = None
        if not finite.any():
            return results
        scores, rows = self._index.search(np.ascontiguousarray(vectors[finite]), min(k, self._index.ntotal))
        for place, row_scores, row_ids in zip(np.asarray(asked)[finite], scores, rows, strict=True):
            # an approximate index pads with -1 where it found fewer than k
            results[place] = [
                self._hit(int(row), float(score)) for row, score in zip(row_ids, row_scores, strict=True) if row >= 0
            ]
        return results

    def _hit(self, row: int, score: float) -> Hit:
        passage = self._store[row]
        return Hit(passage.id, score, passage.title, passage.text)


def _same_spec(built: EncoderSpec, given: EncoderSpec, folder: Path) -> None:
    """``path`` is compared through the weights' fingerprint: the same model may lie in another place."""
    differing = [
        f"encoder.{name}: built with {getattr(built, name)!r}, given {getattr(given, name)!r}"
        for name in (field.name for field in fields(EncoderSpec))
        if name != "path" and getattr(built, name) != getattr(given, name)
    ]
    if differing:
        raise IndexMismatch(
            f"index {folder} was built with another encoder ({'; '.join(differing)}); leave the encoder out "
            "to use the index's own, or build the index again"
        )

"""Dense search: queries to vectors, vectors to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index.encoder import Encoder, EncoderSpec, TextEncoder
from retrieval_index.errors import IndexIncomplete, IndexMismatch
from retrieval_index.index import INDEX_FILE, IndexManifest, read_faiss
from retrieval_index.kinds import set_search
from retrieval_index.ranking import Ranked


class DenseSearcher:
    """One owner at a time: neither the encoder nor a FAISS index on a GPU may be used by two threads at once."""

    def __init__(self, encoder: TextEncoder, index: Any) -> None:
        self.encoder, self.index = encoder, index

    @classmethod
    def open(
        cls, folder: Path, manifest: IndexManifest, encoder: EncoderSpec | TextEncoder | None, *, mmap: bool = False
    ) -> DenseSearcher:
        """Raises IndexIncomplete (a part is missing, or numbers disagree), IndexMismatch (another encoder record, or
        other weights), EncoderError.
        """
        built = manifest.encoder
        if built is None:
            raise IndexMismatch(f"index {folder} has no dense part (kind {manifest.kind}); search it with mode=bm25")
        index = read_faiss(folder, mmap=mmap)
        if index.ntotal != manifest.passages:
            raise IndexIncomplete(
                f"{folder / 'passages.jsonl'} has {manifest.passages} passages, {folder / INDEX_FILE} has "
                f"{index.ntotal} vectors; these files do not belong together, build the index again"
            )
        if isinstance(encoder, EncoderSpec):
            _same_spec(built, encoder, folder)
            encoder = Encoder(encoder)
        elif encoder is None:
            encoder = Encoder(built)
        else:
            _same_spec(built, encoder.spec, folder)
        if encoder.fingerprint != manifest.encoder_fingerprint:
            raise IndexMismatch(
                f"index {folder} was built with weights of sha256 {manifest.encoder_fingerprint} "
                f"(encoder.path={built.path!r}), but encoder.path={encoder.spec.path!r} has "
                f"sha256 {encoder.fingerprint}; use the model it was built with, or build the index again"
            )
        if not encoder.dims == index.d == manifest.dims:
            raise IndexIncomplete(
                f"the encoder gives {encoder.dims} dims, {folder / INDEX_FILE} has {index.d}, the manifest "
                f"says {manifest.dims}; build the index again"
            )
        set_search(index, manifest.nprobe, manifest.ef_search)
        return cls(encoder, index)

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked | None]:
        """The best rows of each query, which must not be empty; None where its vector is not finite."""
        vectors = self.encoder.encode_queries(queries)
        # FAISS answers a vector with NaN in it by ids of -1, without a word
        finite = np.isfinite(vectors).all(axis=1)
        results: list[Ranked | None] = [None] * len(queries)
        if not finite.any():
            return results
        scores, rows = self.index.search(np.ascontiguousarray(vectors[finite]), min(k, self.index.ntotal))
        for place, row_scores, row_ids in zip(np.flatnonzero(finite).tolist(), scores, rows, strict=True):
            # an approximate index pads with -1 where it found fewer than k
            found = row_ids >= 0
            results[place] = list(zip(row_ids[found].tolist(), row_scores[found].tolist(), strict=True))
        return results


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

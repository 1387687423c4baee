"""Dense search: queries to vectors, vectors to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retrieval_index.encoder import Dtype, Encoder, EncoderSpec, Engine, TextEncoder
from retrieval_index.errors import IndexIncomplete, IndexMismatch
from retrieval_index.halfscan import HalfScan, can_scan, pays
from retrieval_index.index import INDEX_FILE, IndexManifest, read_faiss
from retrieval_index.kinds import set_search
from retrieval_index.ranking import Ranked

Scan = Literal["auto", "faiss", "bfloat16"]
# FAISS is as quick with fewer queries
FEWEST_SCANNED = 2
# Beyond, gathering the candidates of a batch would take hundreds of MiB
MOST_SCANNED_K = 256


class DenseSearcher:
    """One owner at a time: neither the encoder nor a FAISS index on a GPU may be used by two threads at once.

    ``scan``: how several queries at once are searched, by FAISS where it is None.
    """

    def __init__(self, encoder: TextEncoder, index: Any, scan: HalfScan | None = None) -> None:
        self.encoder, self.index, self.scan = encoder, index, scan

    @classmethod
    def open(
        cls,
        folder: Path,
        manifest: IndexManifest,
        encoder: EncoderSpec | TextEncoder | None,
        *,
        mmap: bool = False,
        scan: Scan = "auto",
        engine: Engine = "torch",
        dtype: Dtype | None = None,
    ) -> DenseSearcher:
        """``scan=bfloat16`` searches a flat index in two passes (see `halfscan`), ``auto`` where that pays. ``engine``
        and ``dtype`` are for the index's own encoder.

        Raises IndexIncomplete (a part is missing, or numbers disagree), IndexMismatch (another encoder record, other
        weights, or no flat index in memory for ``scan=bfloat16``), EncoderError.
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
            encoder = Encoder(replace(built, dtype=dtype or built.dtype), engine=engine)
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
        scans = can_scan(index, mmap)
        if scan == "bfloat16" and not scans:
            raise IndexMismatch(
                f"search.scan=bfloat16 needs index=flat in memory, and {folder} has {manifest.kind}"
                f"{' with search.mmap=true' if mmap else ''}; leave search.scan out"
            )
        wanted = scan == "bfloat16" or (scan == "auto" and scans and pays(index))
        return cls(encoder, index, HalfScan(index) if wanted else None)

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked | None]:
        """The best rows of each query, which must not be empty; None where its vector is not finite."""
        vectors = self.encoder.encode_queries(queries)
        # FAISS answers a vector with NaN in it by ids of -1, without a word
        finite = np.isfinite(vectors).all(axis=1)
        results: list[Ranked | None] = [None] * len(queries)
        if not finite.any():
            return results
        asked = np.ascontiguousarray(vectors[finite])
        unfit = len(asked) < FEWEST_SCANNED or k > MOST_SCANNED_K
        searched = self.index if self.scan is None or unfit else self.scan
        scores, rows = searched.search(asked, min(k, self.index.ntotal))
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

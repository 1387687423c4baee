"""Taking over an index that somebody else built, such as Search-R1's e5_Flat.index over wiki-18."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index.assemble import folder_bytes, write_manifest
from retrieval_index.bm25 import build_bm25
from retrieval_index.builder import staging_folder
from retrieval_index.card import measure
from retrieval_index.corpus import PassageStore
from retrieval_index.dense import DenseSearcher
from retrieval_index.encoder import Encoder, EncoderSpec, Engine, TextEncoder, normalised
from retrieval_index.errors import IndexIncomplete, IndexMismatch
from retrieval_index.index import BM25_DIR, INDEX_FILE, IndexManifest, read_faiss, vector_blocks
from retrieval_index.recipe import prepared

CHECKED_PASSAGES = 16
# Other batch sizes, dtypes and machines move a cosine by less than .01; a missing prefix or a shifted row by far more
CLOSE = 0.97


def import_index(
    file: str | Path,
    corpus: str | Path,
    encoder: EncoderSpec | TextEncoder,
    out: str | Path,
    *,
    bm25: bool = False,
    overwrite: bool = False,
    engine: Engine = "torch",
    progress: bool = True,
    report: Callable[[str], None] = print,
) -> IndexManifest:
    """Make an index folder of an existing FAISS file and its corpus, after checking that they belong together.

    Rows must agree, dims must be the encoder's, and where the index keeps vectors, those of some passages must be what
    the encoder makes of them (so that row order, prefixes and pooling are right). The file is linked where it lies on
    the same disk, else copied. ``engine`` runs the encoder of a spec.

    Raises IndexIncomplete (not an index, other rows), IndexMismatch (other dims or vectors), CorpusError, and what
    `build_index` raises.
    """
    file, corpus, out = Path(file), Path(corpus), Path(out)
    if not file.is_file():
        raise IndexIncomplete(f"from_index={file}: no such file")
    with staging_folder(out, overwrite) as staging:
        started = time.monotonic()
        model = Encoder(encoder, engine=engine) if isinstance(encoder, EncoderSpec) else encoder
        recipe = prepared(staging, corpus, str(corpus), model, "float32", 1, 1)
        _link(file, staging / INDEX_FILE)
        index = read_faiss(staging, mmap=True)
        if index.ntotal != recipe.rows:
            raise IndexIncomplete(
                f"{file} has {index.ntotal} vectors and {corpus} has {recipe.rows} passages; they are no pair"
            )
        if index.d != model.dims:
            raise IndexMismatch(f"{file} has {index.d} dims and encoder.path={model.spec.path!r} gives {model.dims}")
        if index.metric_type != 0:
            raise IndexMismatch(f"{file} was built for L2 distance; an index for inner products is needed")
        store = PassageStore(staging)
        keeps_vectors = _keeps_vectors(index)
        if keeps_vectors:
            _check_vectors(index, store, model, file)
        else:
            report(f"note: {file} keeps no vectors that can be read by row: rows and prefixes could not be checked")
        if bm25:
            build_bm25(store, staging / BM25_DIR)
        seconds = time.monotonic() - started
        blocks = (lambda: vector_blocks(index)) if keeps_vectors else None
        card = measure(DenseSearcher(model, index), store, seconds, folder_bytes(staging), blocks)
        manifest = IndexManifest(
            kind="imported",
            passages=recipe.rows,
            dims=model.dims,
            corpus=corpus.name,
            corpus_sha256=recipe.corpus_sha256,
            encoder=model.spec,
            encoder_fingerprint=model.fingerprint,
            card=card,
            factory=type(index).__name__,
            bm25=bm25,
        )
        write_manifest(staging, manifest)
        report(manifest.describe())
    return manifest


def _link(file: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(file.resolve(), target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(file, target)


def _keeps_vectors(index: Any) -> bool:
    try:
        index.reconstruct(0)
    except RuntimeError:  # FAISS: "not implemented for this type of index", "direct map not initialized"
        return False
    return True


def _check_vectors(index: Any, store: PassageStore, model: TextEncoder, file: Path) -> None:
    rows = np.unique(np.linspace(0, len(store) - 1, min(CHECKED_PASSAGES, len(store))).astype(np.int64)).tolist()
    passages = [store[row] for row in rows]
    kept = normalised(np.stack([index.reconstruct(row) for row in rows]))
    cosines = (kept * normalised(model.encode_passages([p.contents for p in passages]))).sum(axis=1)
    worst = int(np.argmin(cosines))
    if not cosines[worst] >= CLOSE:
        raise IndexMismatch(
            f"{file}: the vector of row {rows[worst]} has cosine {cosines[worst]:.3f} with what encoder.path="
            f"{model.spec.path!r} makes of passage {passages[worst].id!r}; it was built with another model, other "
            f"prefixes ({model.spec.passage_prefix!r} now) or pooling, or over another corpus"
        )

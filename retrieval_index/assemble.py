"""From a stored corpus and its vectors to the finished folder: FAISS, Lucene, the card, the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrieval_index.bm25 import BM25Searcher, build_bm25
from retrieval_index.card import measure
from retrieval_index.clock import BuildClock
from retrieval_index.corpus import PassageStore
from retrieval_index.dense import DenseSearcher
from retrieval_index.encoder import TextEncoder
from retrieval_index.index import BM25_DIR, INDEX_FILE, MANIFEST_FILE, IndexManifest
from retrieval_index.kinds import IndexKind, new_index, set_search, training_rows
from retrieval_index.progress import Progress
from retrieval_index.recipe import RECIPE_FILE, Recipe
from retrieval_index.vectors import VECTORS_DIR, VectorShards


def finish(
    folder: Path,
    recipe: Recipe,
    model: TextEncoder | None,
    kind: IndexKind | None,
    vectors: VectorShards | None,
    corpus_name: str,
    clock: BuildClock,
    progress: bool,
    report: Callable[[str], None],
    *,
    bm25: bool,
) -> IndexManifest:
    """Make the parts of the index, measure them, remove what was needed on the way, and write the manifest last.

    ``model``, ``kind`` and ``vectors`` are None for BM25 alone. Raises EncoderError, IndexKindError, BM25Unavailable.
    """
    store = PassageStore(folder)
    if bm25:
        shutil.rmtree(folder / BM25_DIR, ignore_errors=True)
        with Progress("BM25", recipe.rows, "passages", enabled=progress) as shown:
            build_bm25(store, folder / BM25_DIR, shown.advance)
    searcher: DenseSearcher | BM25Searcher
    if model is None or kind is None or vectors is None:
        searcher = BM25Searcher(folder / BM25_DIR, recipe.rows)
    else:
        index = _assembled(kind, vectors, progress)
        _write_faiss(index, folder)
        set_search(index, kind.nprobe, kind.ef_search)
        searcher = DenseSearcher(model, index)
    seconds = clock.seconds()
    manifest = IndexManifest(
        kind="bm25" if kind is None else kind.name,
        passages=recipe.rows,
        dims=recipe.dims,
        corpus=corpus_name,
        corpus_sha256=recipe.corpus_sha256,
        encoder=None if model is None else model.spec,
        encoder_fingerprint=recipe.encoder_fingerprint,
        card=measure(searcher, store, seconds, folder_bytes(folder), vectors.blocks if vectors is not None else None),
        factory="" if kind is None else kind.factory,
        nprobe=None if kind is None else kind.nprobe,
        ef_search=None if kind is None else kind.ef_search,
        bm25=bm25,
    )
    write_manifest(folder, manifest)
    report(manifest.describe())
    return manifest


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    shutil.rmtree(folder / VECTORS_DIR, ignore_errors=True)
    (folder / RECIPE_FILE).unlink(missing_ok=True)
    part = folder / f"{MANIFEST_FILE}.part"
    part.write_text(manifest.to_json(), encoding="utf-8")
    part.replace(folder / MANIFEST_FILE)


def folder_bytes(folder: Path) -> int:
    """What the index will take on disk: not the vectors on the way, which are removed."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files if VECTORS_DIR not in file.parts and file.name != RECIPE_FILE)


def _assembled(kind: IndexKind, vectors: VectorShards, progress: bool) -> Any:
    index = new_index(kind, vectors.dims)
    if not index.is_trained:
        index.train(vectors.sample(training_rows(kind, vectors.rows)))
    with Progress("adding", vectors.rows, "passages", enabled=progress) as shown:
        for _, block in vectors.blocks():
            index.add(block)
            shown.advance(len(block))
    return index


def _write_faiss(index: Any, folder: Path) -> None:
    import faiss

    faiss.write_index(index, str(folder / INDEX_FILE))

"""Building an index folder: read, encode in shards, add, measure, and only then give it its name."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from retrieval_index.card import measure
from retrieval_index.corpus import Passage, PassageStore, read_jsonl, write_store
from retrieval_index.download import disk_full_means
from retrieval_index.encoder import Encoder, EncoderSpec, TextEncoder
from retrieval_index.errors import EncoderError, IndexExists, IndexNotWritable, RetrievalError
from retrieval_index.index import INDEX_FILE, MANIFEST_FILE, IndexManifest, read_manifest
from retrieval_index.progress import Progress

# Passages encoded between two additions to the index: enough to form batches by length, small in memory
SHARD_PASSAGES = 2048


def build_index(
    corpus: str | Path | Iterable[Passage],
    encoder: EncoderSpec | TextEncoder,
    out: str | Path,
    *,
    overwrite: bool = False,
    progress: bool = True,
    batch_size: int = 32,
    corpus_name: str | None = None,
    report: Callable[[str], None] | None = None,
) -> IndexManifest:
    """Build a flat (exact) index of ``corpus`` into the folder ``out``.

    ``corpus`` is a jsonl(.gz) file or passages; ``corpus_name`` is what the manifest calls it (default: the
    file's name). ``report`` is given the index card as text. The work is done in a folder beside ``out`` that
    is renamed at the end, so ``out`` is either complete or untouched.

    Raises IndexExists (``out`` is there and ``overwrite`` is false, or is no index), IndexNotWritable,
    CorpusError, EncoderError, DiskFull.
    """
    from filelock import FileLock

    out = Path(out)
    _may_write(out, overwrite)
    if isinstance(corpus, str | Path):
        name, source = corpus_name or Path(corpus).name, str(corpus)
        passages: Iterable[Passage] = read_jsonl(corpus)
    else:
        name, passages = corpus_name or "passages", corpus
        source = name
    lock_file = out.parent / f".{out.name}.lock"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock_file.touch()  # where a lock file cannot be made, FileLock may wait for ever
    except OSError as error:
        raise IndexNotWritable(
            f"{out} cannot be written ({error.filename}: {error.strerror}); choose another `out`"
        ) from error
    with FileLock(lock_file):
        _restore(out)
        _may_write(out, overwrite)  # another process may have finished it while we waited
        staging = out.parent / f".{out.name}.building"
        shutil.rmtree(staging, ignore_errors=True)  # left by a build that was killed; we hold the lock
        staging.mkdir()
        try:
            with disk_full_means(out.parent, None, "choose another `out`"):
                manifest = _build(passages, name, source, encoder, staging, progress, batch_size)
            _put_in_place(staging, out)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    if report is not None:
        report(manifest.describe())
    return manifest


def _may_write(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        read_manifest(out)
    except RetrievalError:
        # never delete what is not ours, whatever `overwrite` says
        raise IndexExists(f"{out} exists and is not an index; choose another `out`, or remove it yourself") from None
    if not overwrite:
        raise IndexExists(f"{out} already holds an index; set overwrite=true to replace it, or choose another `out`")


def _restore(out: Path) -> None:
    """Put back the index that a build was about to replace when it was killed between its two renames."""
    old = out.parent / f".{out.name}.replaced"
    if old.exists() and not out.exists():
        old.rename(out)


def _put_in_place(staging: Path, out: Path) -> None:
    old = out.parent / f".{out.name}.replaced"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    staging.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _build(
    passages: Iterable[Passage],
    name: str,
    source: str,
    encoder: EncoderSpec | TextEncoder,
    folder: Path,
    progress: bool,
    batch_size: int,
) -> IndexManifest:
    import faiss

    started = time.monotonic()
    # the whole corpus is read, checked and stored before the first passage is encoded: a bad line near the
    # end should cost seconds, not hours
    rows, corpus_sha256 = write_store(passages, folder, source)
    store = PassageStore(folder)
    model = Encoder(encoder, batch_size=batch_size) if isinstance(encoder, EncoderSpec) else encoder
    index = faiss.IndexFlatIP(model.dims)
    with Progress("encoding", rows, "passages", enabled=progress) as shown:
        for start in range(0, rows, SHARD_PASSAGES):
            shard = [store[row] for row in range(start, min(start + SHARD_PASSAGES, rows))]
            _add(index, model, shard)
            shown.advance(len(shard))
    faiss.write_index(index, str(folder / INDEX_FILE))
    build_seconds = time.monotonic() - started

    size_bytes = sum(file.stat().st_size for file in folder.iterdir())
    manifest = IndexManifest(
        kind="flat",
        passages=rows,
        dims=model.dims,
        corpus=name,
        corpus_sha256=corpus_sha256,
        encoder=model.spec,
        encoder_fingerprint=model.fingerprint,
        card=measure(model, index, store, build_seconds, size_bytes),
    )
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _add(index: Any, model: TextEncoder, shard: list[Passage]) -> None:
    import numpy as np

    vectors = model.encode_passages([passage.contents for passage in shard])
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        bad = shard[int(np.flatnonzero(~finite)[0])]
        raise EncoderError(f"the encoder gave no finite vector for passage {bad.id!r} ({bad.contents[:80]!r})")
    index.add(np.ascontiguousarray(vectors, dtype=np.float32))

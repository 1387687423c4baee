"""Building an index folder: read, encode in shards, add, measure, and only then give it its name."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retrieval_index.assemble import finish
from retrieval_index.clock import BuildClock
from retrieval_index.corpus import Passage
from retrieval_index.download import disk_full_means
from retrieval_index.encode_shards import EncodeShards, encode_here, encode_missing
from retrieval_index.encoder import Encoder, EncoderSpec, Engine, TextEncoder
from retrieval_index.errors import DiskFull, IndexExists, IndexNotWritable, RetrievalError
from retrieval_index.index import IndexManifest, read_manifest
from retrieval_index.kinds import index_kind
from retrieval_index.recipe import prepared
from retrieval_index.vectors import VectorShards

# Passages of a shard file: enough to form batches by length, small in memory, and all that a kill can cost
SHARD_PASSAGES = 2048


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """``kind``: a name of `kinds.KINDS`, ``auto`` (with ``memory_gb``), ``factory`` (with ``factory``), or ``bm25``,
    which has no dense part. ``bm25`` adds a Lucene index to a dense one.
    """

    kind: str = "flat"
    factory: str | None = None
    nprobe: int | None = None
    ef_search: int | None = None
    memory_gb: float | None = None
    bm25: bool = False


def build_index(
    corpus: str | Path | Iterable[Passage],
    encoder: EncoderSpec | TextEncoder,
    out: str | Path,
    *,
    options: IndexOptions | None = None,
    overwrite: bool = False,
    progress: bool = True,
    batch_size: int = 32,
    engine: Engine = "torch",
    corpus_name: str | None = None,
    report: Callable[[str], None] | None = None,
    encode: EncodeShards = encode_here,
) -> IndexManifest:
    """Build an index of ``corpus`` into the folder ``out``.

    ``corpus`` is a file, a folder of files, or passages; ``corpus_name`` is what the manifest calls it (default: the
    file's name). ``batch_size`` and ``engine`` are those of the encoder of a spec. ``report`` is given what is worth
    saying. ``encode`` encodes the shards that are missing.
    The work is done in a folder beside ``out`` that is renamed at the end, so ``out`` is either complete or untouched;
    what a killed build left there is taken up again, where corpus and encoder are the same. Memory: the index, and a
    constant.

    Raises IndexExists (``out`` is there and ``overwrite`` is false, or is no index), IndexNotWritable, CorpusError,
    EncoderError, IndexKindError, BM25Unavailable, DiskFull.
    """
    out, options, report = Path(out), options or IndexOptions(), report or _silent
    name = corpus_name or (Path(corpus).name if isinstance(corpus, str | Path) else "passages")
    source_name = str(corpus) if isinstance(corpus, str | Path) else name
    with staging_folder(out, overwrite) as staging:
        started = time.monotonic()
        if options.kind == "bm25":
            recipe = prepared(staging, corpus, source_name, None, "float32", SHARD_PASSAGES, batch_size)
            clock = BuildClock(staging, started)
            return finish(staging, recipe, None, None, None, name, clock, progress, report, bm25=True)
        model = encoder
        if isinstance(model, EncoderSpec):
            model = Encoder(model, batch_size=batch_size, engine=engine)
        report(f"encoding with {model.computes}")
        # what the index will not keep of a vector need not be kept on disk on the way there either
        dtype = "float32" if options.kind in ("flat", "hnsw", "factory", "auto") else "float16"
        recipe = prepared(staging, corpus, source_name, model, dtype, SHARD_PASSAGES, batch_size)
        kind = index_kind(
            options.kind,
            recipe.rows,
            model.dims,
            factory=options.factory,
            nprobe=options.nprobe,
            ef_search=options.ef_search,
            memory_gb=options.memory_gb,
        )
        if kind.reason:
            report(f"index=auto: {kind.reason}")
        vectors = VectorShards(staging, recipe.rows, recipe.dims, recipe.shard_rows, recipe.vectors_dtype)
        clock = BuildClock(staging, started)
        encode_missing(staging, vectors, model, clock, encode, progress, report)
        return finish(staging, recipe, model, kind, vectors, name, clock, progress, report, bm25=options.bm25)


@contextmanager
def staging_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """The folder to build in, which becomes ``out`` when the block ends well.

    Where the build is at fault (a bad corpus, say) the folder is removed; where it was interrupted, or the disk was
    full, it stays and the next build goes on with it. Raises IndexExists, IndexNotWritable, DiskFull.
    """
    from filelock import FileLock

    _may_write(out, overwrite)
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
        try:
            with disk_full_means(out.parent, None, "choose another `out`"):
                yield staging
            _put_in_place(staging, out)
        except DiskFull:
            raise
        except RetrievalError:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def _silent(_: str) -> None:
    """A report to nobody."""


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

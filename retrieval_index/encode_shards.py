"""Encoding the shards of a build that are not there yet: in this process, or over Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from retrieval_index.corpus import PassageStore
from retrieval_index.encoder import Encoder, EncoderSpec, Engine, TextEncoder
from retrieval_index.progress import Progress
from retrieval_index.vectors import VectorShards, encode_shard


class EncodeMissing(Protocol):
    """Writes every shard that ``vectors`` does not have, from the store in ``folder``."""

    def __call__(
        self,
        folder: Path,
        vectors: VectorShards,
        model: TextEncoder,
        progress: bool,
        report: Callable[[str], None],
    ) -> None: ...


def _missing(vectors: VectorShards, report: Callable[[str], None]) -> tuple[list[int], int]:
    """Shards to encode, and the passages that need not be."""
    missing = [shard for shard in range(len(vectors)) if not vectors.has(shard)]
    done = vectors.rows - sum(len(vectors.span(shard)) for shard in missing)
    if done:
        report(f"resumed: {done} of {vectors.rows} passages are encoded already")
    return missing, done


def encode_here(
    folder: Path, vectors: VectorShards, model: TextEncoder, progress: bool, report: Callable[[str], None]
) -> None:
    """By ``model`` itself, shard after shard (it may spread a shard over processes or GPUs of its own)."""
    store = PassageStore(folder)
    missing, done = _missing(vectors, report)
    with Progress("encoding", vectors.rows, "passages", done=done, enabled=progress) as shown:
        for shard in missing:
            span = vectors.span(shard)
            vectors.write(shard, encode_shard(model, [store[row] for row in span]))
            shown.advance(len(span))


class _ShardWorker:
    """One Ray actor: its own copy of the model, the files of a folder that every node sees."""

    def __init__(self, folder: str, rows: int, dims: int, shard_rows: int, dtype: str, load: Any) -> None:
        self._store = PassageStore(Path(folder))
        self._vectors = VectorShards(Path(folder), rows, dims, shard_rows, dtype)
        self._model: TextEncoder = load()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[int]]:
        done = []
        for shard in batch["shard"]:
            span = self._vectors.span(int(shard))
            self._vectors.write(int(shard), encode_shard(self._model, [self._store[row] for row in span]))
            done.append(len(span))
        return {"passages": done}


def encode_on_ray(workers: int, gpus_each: float, load: Callable[[], TextEncoder]) -> EncodeMissing:
    """Over Ray Data: ``workers`` actors of ``gpus_each`` GPUs, each with what ``load`` (picklable) gives.

    The build folder must be on a file system that all nodes share. Takes the running Ray cluster, or starts a local
    one.
    """

    def encode(
        folder: Path, vectors: VectorShards, model: TextEncoder, progress: bool, report: Callable[[str], None]
    ) -> None:
        import ray

        missing, done = _missing(vectors, report)
        if not missing:
            return
        described = (str(folder.resolve()), vectors.rows, vectors.dims, vectors.shard_rows, vectors.dtype.name, load)
        shards = ray.data.from_items([{"shard": shard} for shard in missing], override_num_blocks=len(missing))
        encoded = shards.map_batches(
            _ShardWorker,
            fn_constructor_args=described,
            batch_size=1,
            num_gpus=gpus_each,
            compute=ray.data.ActorPoolStrategy(size=workers),
        )
        with Progress("encoding", vectors.rows, "passages", done=done, enabled=progress) as shown:
            for row in encoded.iter_rows():
                shown.advance(int(row["passages"]))

    return encode


class LoadEncoder:
    """Loads the model where it is called: what a Ray actor is given."""

    def __init__(self, spec: EncoderSpec, batch_size: int, engine: Engine) -> None:
        self._spec, self._batch_size, self._engine = spec, batch_size, engine

    def __call__(self) -> TextEncoder:
        return Encoder(self._spec, batch_size=self._batch_size, engine=self._engine)

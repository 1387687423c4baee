"""Encoding the shards of a build that are not there yet: in this process, or over Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from retrieval_index.clock import BuildClock
from retrieval_index.corpus import PassageStore
from retrieval_index.encoder import Encoder, EncoderSpec, Engine, TextEncoder
from retrieval_index.progress import Progress
from retrieval_index.vectors import VectorShards, encode_shard


class EncodeShards(Protocol):
    """Writes the ``missing`` shards of ``vectors`` from the store in ``folder``, and gives ``advance`` the number of
    passages of each that is written.
    """

    def __call__(
        self,
        folder: Path,
        vectors: VectorShards,
        missing: Sequence[int],
        model: TextEncoder,
        advance: Callable[[int], None],
    ) -> None: ...


def encode_missing(
    folder: Path,
    vectors: VectorShards,
    model: TextEncoder,
    clock: BuildClock,
    encode: EncodeShards,
    progress: bool,
    report: Callable[[str], None],
) -> None:
    """Have ``encode`` write the shards that are not there yet; ``clock`` is saved with each."""
    missing = [shard for shard in range(len(vectors)) if not vectors.has(shard)]
    if not missing:
        return
    done = vectors.rows - sum(len(vectors.span(shard)) for shard in missing)
    if done:
        report(f"resumed: {done} of {vectors.rows} passages are encoded already")
    with Progress("encoding", vectors.rows, "passages", done=done, enabled=progress) as shown:

        def advance(passages: int) -> None:
            shown.advance(passages)
            clock.save()

        encode(folder, vectors, missing, model, advance)


def encode_here(
    folder: Path,
    vectors: VectorShards,
    missing: Sequence[int],
    model: TextEncoder,
    advance: Callable[[int], None],
) -> None:
    """By ``model`` itself, shard after shard (it may spread a shard over processes or GPUs of its own)."""
    store = PassageStore(folder)
    for shard in missing:
        span = vectors.span(shard)
        vectors.write(shard, encode_shard(model, [store[row] for row in span]))
        advance(len(span))


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


def encode_on_ray(workers: int, gpus_each: float, load: Callable[[], TextEncoder]) -> EncodeShards:
    """Over Ray Data: ``workers`` actors of ``gpus_each`` GPUs, each with what ``load`` (picklable) gives.

    The build folder must be on a file system that all nodes share. Takes the running Ray cluster, or starts a local
    one.
    """

    def encode(
        folder: Path,
        vectors: VectorShards,
        missing: Sequence[int],
        model: TextEncoder,
        advance: Callable[[int], None],
    ) -> None:
        import ray

        described = (str(folder.resolve()), vectors.rows, vectors.dims, vectors.shard_rows, vectors.dtype.name, load)
        shards = ray.data.from_items([{"shard": shard} for shard in missing], override_num_blocks=len(missing))
        encoded = shards.map_batches(
            _ShardWorker,
            fn_constructor_args=described,
            batch_size=1,
            num_gpus=gpus_each,
            compute=ray.data.ActorPoolStrategy(size=workers),
        )
        for row in encoded.iter_rows():
            advance(int(row["passages"]))

    return encode


class LoadEncoder:
    """Loads the model where it is called: what a Ray actor is given."""

    def __init__(self, spec: EncoderSpec, batch_size: int, engine: Engine) -> None:
        self._spec, self._batch_size, self._engine = spec, batch_size, engine

    def __call__(self) -> TextEncoder:
        return Encoder(self._spec, batch_size=self._batch_size, engine=self._engine)

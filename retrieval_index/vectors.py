"""The vectors of a build, in shard files: what a killed build leaves, and a resumed one does not encode again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from retrieval_index.corpus import Passage
from retrieval_index.encoder import TextEncoder
from retrieval_index.errors import EncoderError

VECTORS_DIR = "vectors"


class VectorShards:
    """``[N, D]`` in files of ``shard_rows`` rows each; ``dtype`` is float32 or float16. One writer."""

    def __init__(self, folder: Path, rows: int, dims: int, shard_rows: int, dtype: str) -> None:
        self._folder = folder / VECTORS_DIR
        self._folder.mkdir(exist_ok=True)
        self.rows, self.dims, self.shard_rows, self.dtype = rows, dims, shard_rows, np.dtype(dtype)

    def __len__(self) -> int:
        return -(-self.rows // self.shard_rows)

    def span(self, shard: int) -> range:
        return range(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows))

    def path(self, shard: int) -> Path:
        return self._folder / f"{shard:06d}.npy"

    def has(self, shard: int) -> bool:
        """Whether the shard is there and whole: after a power cut a renamed file may be empty."""
        try:
            return self._open(shard).shape == (len(self.span(shard)), self.dims)
        except (OSError, ValueError, EOFError):
            return False

    def write(self, shard: int, vectors: np.ndarray) -> None:
        part = self.path(shard).with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, vectors.astype(self.dtype, copy=False))
        part.replace(self.path(shard))

    def read(self, shard: int) -> np.ndarray:
        """float32 [<= shard_rows, D]."""
        return np.ascontiguousarray(self._open(shard), dtype=np.float32)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, float32 vectors) of each shard, in order."""
        for shard in range(len(self)):
            yield shard * self.shard_rows, self.read(shard)

    def sample(self, count: int) -> np.ndarray:
        """float32 [<= count, D], evenly spaced over all rows."""
        chosen = np.unique(np.linspace(0, self.rows - 1, min(count, self.rows)).astype(np.int64))
        parts = []
        for shard in range(len(self)):
            span = self.span(shard)
            inside = chosen[np.searchsorted(chosen, span.start) : np.searchsorted(chosen, span.stop)] - span.start
            if len(inside):
                parts.append(self._open(shard)[inside].astype(np.float32))
        return np.concatenate(parts)

    def _open(self, shard: int) -> np.ndarray:
        opened: np.ndarray = np.load(self.path(shard), mmap_mode="r")
        return opened


def encode_shard(model: TextEncoder, passages: Sequence[Passage]) -> np.ndarray:
    """float32 [B, D]. Raises EncoderError, naming the first passage whose vector is not finite."""
    vectors = model.encode_passages([passage.contents for passage in passages])
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        bad = passages[int(np.flatnonzero(~finite)[0])]
        raise EncoderError(f"the encoder gave no finite vector for passage {bad.id!r} ({bad.contents[:80]!r})")
    return vectors

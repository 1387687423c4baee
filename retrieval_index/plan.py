"""What building an index will take on this machine, before it is started."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval_index.corpus import Passage
from retrieval_index.encoder import Encoder, EncoderSpec, Engine
from retrieval_index.kinds import KINDS, index_bytes
from retrieval_index.readers import sample_rows

SAMPLED_PASSAGES = 4096
TIMED_PASSAGES = 128
# The interpreter, torch, the encoder and a shard of passages with their vectors
BASE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """``exact``: whether the passages were counted, not estimated. ``passages_per_s`` is that of all workers."""

    passages: int
    exact: bool
    dims: int
    stored_bytes_per_passage: float
    passages_per_s: float

    @property
    def hours(self) -> float:
        return self.passages / self.passages_per_s / 3600

    @property
    def store_bytes(self) -> int:
        """The passages on disk, and 8 bytes each to find them by row."""
        return round(self.passages * (self.stored_bytes_per_passage + 8))

    def vectors_bytes(self, kind: str) -> int:
        """Disk for the vectors until the index is made of them."""
        return self.passages * self.dims * (4 if kind in ("flat", "hnsw") else 2)

    def memory_bytes(self, kind: str) -> int:
        """Of the build: the index and a constant, beside 16 bytes a passage while the corpus is read."""
        return index_bytes(kind, self.passages, self.dims) + BASE_BYTES + 16 * self.passages

    def describe(self, kind: str, free_bytes: int) -> list[str]:
        size, vectors = index_bytes(kind, self.passages, self.dims), self.vectors_bytes(kind)
        needed = self.store_bytes + vectors + size
        sizes = ", ".join(f"{name} {_size(index_bytes(name, self.passages, self.dims))}" for name in KINDS)
        to_build, takes = _size(self.memory_bytes(kind)), _duration(self.hours)
        lines = [
            f"passages         {'' if self.exact else 'about '}{self.passages}, {self.dims} dims, index={kind}",
            f"disk             {_size(needed)} while it is built ({_size(vectors)} of it vectors on the way), "
            f"{_size(self.store_bytes + size)} after; {_size(free_bytes)} are free",
            f"memory           {to_build} to build it, {_size(size)} to serve it (less with mmap)",
            f"time             about {takes} at {self.passages_per_s:.0f} passages/s, measured just now",
            f"index sizes      {sizes}",
        ]
        if needed > free_bytes:
            lines.append(f"will not fit     {_size(needed - free_bytes)} more disk is needed")
        return lines


def plan_build(
    corpus: str | Path, encoder: EncoderSpec, batch_size: int, workers: int, engine: Engine = "torch"
) -> BuildPlan:
    """Count or estimate the passages, and time the encoder on some. Raises CorpusError, EncoderError."""
    sample, passages, exact = sample_rows(corpus, SAMPLED_PASSAGES)
    model = Encoder(encoder, batch_size=batch_size, engine=engine)
    return BuildPlan(passages, exact, model.dims, _stored_bytes(sample), _rate(model, sample) * workers)


def free_bytes(out: Path) -> int:
    """On the disk of a folder that may not be there yet."""
    return shutil.disk_usage(next(folder for folder in out.absolute().parents if folder.exists())).free


def _rate(model: Encoder, sample: Sequence[Passage]) -> float:
    """Passages a second of one process, on texts spread over the sample."""
    texts = [passage.contents for passage in sample[:: max(1, len(sample) // TIMED_PASSAGES)]][:TIMED_PASSAGES]
    model.encode_passages(texts[:8])  # the first call of a process is slow
    started = time.monotonic()
    model.encode_passages(texts)
    return len(texts) / max(time.monotonic() - started, 1e-9)


def _stored_bytes(sample: Sequence[Passage]) -> float:
    framing = len('{"id": "", "title": "", "text": ""}\n')
    return sum(len((p.id + p.title + p.text).encode()) + framing for p in sample) / max(len(sample), 1)


def _size(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _duration(hours: float) -> str:
    return f"{hours:.2f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"

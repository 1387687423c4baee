"""Kinds of dense index: their FAISS factory strings, their sizes, and the choice of one that fits a memory.

``N`` passages of ``D`` dimensions. All arithmetic is in Python integers: 21,015,324 x 768 x 4 is beyond 2**35.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from retrieval_index.errors import IndexKindError

# Most accurate first: the order in which `auto` looks for one that fits
BY_ACCURACY = ("flat", "flat_fp16", "sq8", "opq_ivf_pq")
KINDS = ("flat", "flat_fp16", "sq8", "ivf_sq8", "hnsw", "ivf_pq", "opq_ivf_pq")
HNSW_LINKS = 32
DEFAULT_NPROBE = 64
DEFAULT_EF_SEARCH = 128
# k-means wants 39 to 256 training points a centroid; more are thrown away by FAISS itself
TRAIN_PER_LIST = 64
FEWEST_PER_LIST = 39


@dataclass(frozen=True, slots=True)
class IndexKind:
    """A kind with its numbers filled in. ``nprobe`` lists, or ``ef_search`` candidates, are visited by a search."""

    name: str
    factory: str
    nprobe: int | None = None
    ef_search: int | None = None
    reason: str = ""

    @property
    def coarse(self) -> bool:
        """Whether what the index keeps of a number is at most 16 bits, so that float16 is enough to build from."""
        return "Flat" not in self.factory.split(",")[-1] and not self.factory.startswith("HNSW")


def index_kind(
    name: str,
    rows: int,
    dims: int,
    *,
    factory: str | None = None,
    nprobe: int | None = None,
    ef_search: int | None = None,
    memory_gb: float | None = None,
) -> IndexKind:
    """The kind ``name`` (one of KINDS, ``auto``, or ``factory`` with its string) for a corpus.

    ``auto`` takes the most accurate kind of at most ``memory_gb`` GiB. Raises IndexKindError, naming what to change.
    """
    reason = ""
    if name == "auto":
        if memory_gb is None:
            raise IndexKindError("index=auto needs memory_gb=..., the GiB that the index may take")
        name, reason = choose(rows, dims, memory_gb)
    if (name == "factory") != (factory is not None):
        raise IndexKindError("index.kind=factory and index.factory='...' (a FAISS factory string) go together")
    chosen = factory or _factory(name, rows, dims)
    lists = lists_of(chosen)
    if nprobe is not None and not lists:
        raise IndexKindError(f"index.nprobe={nprobe}: {chosen} has no inverted lists; leave it out")
    if ef_search is not None and "HNSW" not in chosen:
        raise IndexKindError(f"index.ef_search={ef_search}: {chosen} has no HNSW graph; leave it out")
    if lists and rows < lists:
        raise IndexKindError(
            f"index {chosen} trains {lists} lists and the corpus has {rows} passages; take index=flat, or fewer lists"
        )
    return IndexKind(
        name,
        chosen,
        min(nprobe or DEFAULT_NPROBE, lists) if lists else None,
        (ef_search or DEFAULT_EF_SEARCH) if chosen.startswith("HNSW") else None,
        reason,
    )


def choose(rows: int, dims: int, memory_gb: float) -> tuple[str, str]:
    """The most accurate kind that fits, and why it was taken. Raises IndexKindError where none does."""
    too_big: list[str] = []
    for name in BY_ACCURACY:
        if name == "opq_ivf_pq" and rows < FEWEST_PER_LIST * 256:
            continue  # too few passages to train it on
        size = index_bytes(name, rows, dims) / 2**30
        if size <= memory_gb:
            over = f"; {', '.join(too_big)} would be more accurate and not fit" if too_big else ", and is exact"
            return name, f"{name} takes {size:.2f} GiB of memory_gb={memory_gb:g}{over}"
        too_big.append(f"{name} ({size:.2f} GiB)")
    raise IndexKindError(
        f"memory_gb={memory_gb:g} holds no index of {rows} passages of {dims} dims: {', '.join(too_big)}; "
        "give more memory, serve a memory-mapped index (search.mmap=true), or take fewer passages"
    )


def lists_for(rows: int) -> int:
    """The power of two next below 4 sqrt(N) that leaves FEWEST_PER_LIST passages to each list."""
    wanted = max(1, min(int(4 * rows**0.5), rows // FEWEST_PER_LIST))
    return 1 << (wanted.bit_length() - 1)


def pq_bytes(dims: int) -> int:
    """Bytes of a PQ code: the largest divisor of D that is at most D / 8."""
    return next(m for m in range(max(1, dims // 8), 0, -1) if dims % m == 0)


def index_bytes(name: str, rows: int, dims: int) -> int:
    """Bytes that an index of a kind takes, in memory and on disk (to about 2 %)."""
    lists, codes = lists_for(rows), pq_bytes(dims)
    inverted = rows * 8 + lists * dims * 4
    codebook = 256 * dims * 4
    sizes = {
        "flat": rows * dims * 4,
        "flat_fp16": rows * dims * 2,
        "sq8": rows * dims,
        "ivf_sq8": rows * dims + inverted,
        # links of the ground level, 2 M a passage, and their share of the levels above
        "hnsw": rows * (dims * 4 + 4 * (2 * HNSW_LINKS) + 4 + 8 + 4),
        "ivf_pq": rows * codes + inverted + codebook,
        "opq_ivf_pq": rows * codes + inverted + codebook + dims * dims * 4,
    }
    return sizes[name]


def vector_offset(row: int, dims: int, itemsize: int = 4) -> int:
    """Byte at which a row's vector starts in a plain matrix; never wraps (facebookresearch/faiss#2685)."""
    return int(row) * int(dims) * int(itemsize)


def lists_of(factory: str) -> int:
    """Inverted lists of a factory string; 0 where it has none."""
    found = re.search(r"IVF(\d+)", factory)
    return int(found[1]) if found else 0


def _factory(name: str, rows: int, dims: int) -> str:
    lists, codes = lists_for(rows), pq_bytes(dims)
    if "pq" in name and rows < FEWEST_PER_LIST * 256:
        raise IndexKindError(
            f"index={name} trains 256 centroids and needs {FEWEST_PER_LIST * 256} passages, the corpus has {rows}; "
            "take index=sq8"
        )
    return {
        "flat": "Flat",
        "flat_fp16": "SQfp16",
        "sq8": "SQ8",
        "ivf_sq8": f"IVF{lists},SQ8",
        "hnsw": f"HNSW{HNSW_LINKS}",
        "ivf_pq": f"IVF{lists},PQ{codes}",
        "opq_ivf_pq": f"OPQ{codes},IVF{lists},PQ{codes}",
    }[name]


def new_index(kind: IndexKind, dims: int) -> Any:
    """An empty FAISS index for inner products. Raises IndexKindError where FAISS does not know the string."""
    import faiss

    try:
        return faiss.index_factory(dims, kind.factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise IndexKindError(f"index.factory={kind.factory!r} for {dims} dims: FAISS says {reason}") from error


def set_search(index: Any, nprobe: int | None, ef_search: int | None) -> None:
    """Set how much of the index a search visits."""
    import faiss

    space = faiss.ParameterSpace()
    if nprobe is not None:
        space.set_index_parameter(index, "nprobe", nprobe)
    if ef_search is not None:
        space.set_index_parameter(index, "efSearch", ef_search)


def training_rows(kind: IndexKind, rows: int) -> int:
    """Passages to train on: bounded, whatever the corpus is."""
    return min(rows, max(TRAIN_PER_LIST * max(lists_of(kind.factory), 1), 65_536))

"""The parts of an index folder: ``manifest.json``, ``passages.jsonl``, ``offsets.npy``, and ``index.faiss`` or
``bm25/`` (Lucene's files) or both.

The manifest is written last: where it is, the index is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from retrieval_index.encoder import EncoderSpec
from retrieval_index.errors import IndexIncomplete, IndexNotFound

FORMAT = 2
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.faiss"
BM25_DIR = "bm25"


@dataclass(frozen=True, slots=True)
class IndexCard:
    """What was measured on an index when it was built.

    ``recall``: share of the exact top-k, k as key, that the index finds on ``sampled_queries`` queries; empty where
    there is nothing exact to compare with (BM25 alone, an imported index that keeps no vectors).
    ``build_seconds``: of all the tries of a build that was killed and resumed, but for the shards they lost.
    ``self_retrieval``: titles asked, and titles that found a passage of their own in the top 10.
    ``queries_per_s``: end to end (encoder included), in batches of 32, on the machine that built it.
    """

    bytes: int
    build_seconds: float
    sampled_queries: int
    recall: dict[str, float]
    self_retrieval: tuple[int, int]
    queries_per_s: float


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """``corpus_sha256`` is that of ``passages.jsonl``, the canonical form of the corpus.

    ``kind`` is a name of `kinds.KINDS`, "factory", or "bm25": then there is no dense index, ``encoder`` is None and
    ``dims`` 0. ``factory`` is the FAISS string; ``nprobe`` / ``ef_search`` are what its searches visit. ``bm25`` says
    whether the folder has a Lucene index (too).
    """

    kind: str
    passages: int
    dims: int
    corpus: str
    corpus_sha256: str
    encoder: EncoderSpec | None
    encoder_fingerprint: str
    card: IndexCard
    factory: str = "Flat"
    nprobe: int | None = None
    ef_search: int | None = None
    bm25: bool = False
    format: int = FORMAT

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: Path) -> IndexManifest:
        """Raises IndexIncomplete where the text is no manifest of this format."""
        try:
            raw: dict[str, Any] = json.loads(text)
            if raw["format"] != FORMAT:
                raise IndexIncomplete(f"{where} has format {raw['format']}, this version reads {FORMAT}; rebuild")
            card = raw["card"] | {"self_retrieval": tuple(raw["card"]["self_retrieval"])}
            return cls(**raw | {"encoder": _encoder(raw["encoder"]), "card": IndexCard(**card)})
        except (ValueError, KeyError, TypeError) as error:
            raise IndexIncomplete(f"{where} is not an index manifest ({error}); build the index again") from error

    def describe(self) -> str:
        """The index card as printed on a terminal."""
        card = self.card
        asked, found = card.self_retrieval
        recall = ", ".join(f"@{k} {value:.3f}" for k, value in card.recall.items())
        visits = [f"{name} {n}" for name, n in (("nprobe", self.nprobe), ("ef_search", self.ef_search)) if n]
        shown = [self.kind, *([self.factory] if self.encoder else []), *visits]
        shown += ["with BM25"] if self.bm25 and self.encoder else []
        rate = self.passages / max(card.build_seconds, 1e-9)
        return "\n".join(
            [
                f"index            {', '.join(shown)}",
                f"size             {self.passages} passages, {self.dims} dims, {card.bytes / 2**20:.1f} MiB",
                f"built in         {card.build_seconds:.1f} s ({rate:.0f} passages/s)",
                f"recall vs exact  {recall or 'not measured'} ({card.sampled_queries} sampled queries)",
                f"self-retrieval   {found} of {asked} titles find a passage of their own in the top 10",
                f"speed            {card.queries_per_s:.0f} queries/s in batches of 32, encoder included",
                f"encoder          {_described(self.encoder)}",
                f"corpus           {self.corpus}, sha256 {self.corpus_sha256}",
            ]
        )


def _described(encoder: EncoderSpec | None) -> str:
    if encoder is None:
        return "none"
    prefixes = f"prefixes {encoder.query_prefix!r} / {encoder.passage_prefix!r}"
    return f"{encoder.path}, {encoder.pooling} pooling, {prefixes}, {encoder.max_tokens} tokens"


def _encoder(raw: dict[str, Any] | None) -> EncoderSpec | None:
    """Raises ValueError where a value is none that an encoder record may hold."""
    if raw is None:
        return None
    spec = EncoderSpec(**raw)
    for name, hint in get_type_hints(EncoderSpec).items():
        value, choices = getattr(spec, name), get_args(hint)
        if value not in choices if choices else type(value) is not hint:
            raise ValueError(f"encoder.{name} is {value!r}")
    return spec


def manifest_sha256(folder: Path) -> str:
    return hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()


def read_manifest(folder: Path) -> IndexManifest:
    """Raises IndexNotFound (no folder) or IndexIncomplete (no manifest, or not one of ours)."""
    if not folder.is_dir():
        raise IndexNotFound(f"no index at {folder}; make one with `agent-rl build-index out={folder}`")
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise IndexIncomplete(f"{path} is missing: the index was not built to its end; build it again")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise IndexIncomplete(f"{path} is not an index manifest ({error}); build the index again") from error
    return IndexManifest.from_json(text, path)


def read_faiss(folder: Path, *, mmap: bool = False) -> Any:
    """The FAISS index of a folder. ``mmap``: its codes stay on disk until a search touches them.

    Raises IndexIncomplete where the file is missing or cut short.
    """
    import faiss

    path = folder / INDEX_FILE
    if not path.is_file():
        raise IndexIncomplete(f"{path} is missing; build the index again")
    try:
        # unlike IO_FLAG_MMAP, this one maps the codes of every kind, flat ones too
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
    except RuntimeError as error:
        raise IndexIncomplete(f"{path} is damaged ({_first_line(error)}); build the index again") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def vector_blocks(index: Any, rows_per_block: int = 8192) -> Iterator[tuple[int, np.ndarray]]:
    """The stored vectors, block by block: (first row, float32 [<= rows_per_block, D])."""
    for start in range(0, index.ntotal, rows_per_block):
        yield start, index.reconstruct_n(start, min(rows_per_block, index.ntotal - start))

"""The parts of an index folder: ``manifest.json``, ``index.faiss``, ``passages.jsonl``, ``offsets.npy``.

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

FORMAT = 1
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.faiss"


@dataclass(frozen=True, slots=True)
class IndexCard:
    """What was measured on an index when it was built.

    ``recall``: share of the exact top-k, k as key, that the index finds on ``sampled_queries`` queries.
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
    """``corpus_sha256`` is that of ``passages.jsonl``, the canonical form of the corpus."""

    kind: str
    passages: int
    dims: int
    corpus: str
    corpus_sha256: str
    encoder: EncoderSpec
    encoder_fingerprint: str
    card: IndexCard
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
        prefixes = f"prefixes {self.encoder.query_prefix!r} / {self.encoder.passage_prefix!r}"
        return "\n".join(
            [
                f"index            {self.kind}, {self.passages} passages, {self.dims} dims, "
                f"{card.bytes / 2**20:.1f} MiB",
                f"built in         {card.build_seconds:.1f} s ({self.passages / card.build_seconds:.0f} passages/s)",
                f"recall vs exact  {recall} ({card.sampled_queries} sampled queries)",
                f"self-retrieval   {found} of {asked} titles find a passage of their own in the top 10",
                f"speed            {card.queries_per_s:.0f} queries/s in batches of 32, encoder included",
                f"encoder          {self.encoder.path}, {self.encoder.pooling} pooling, {prefixes}, "
                f"{self.encoder.max_tokens} tokens",
                f"corpus           {self.corpus}, sha256 {self.corpus_sha256}",
            ]
        )


def _encoder(raw: dict[str, Any]) -> EncoderSpec:
    """Raises ValueError where a value is none that an encoder record may hold."""
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


def read_faiss(folder: Path) -> Any:
    """The FAISS index of a folder. Raises IndexIncomplete where the file is missing or cut short."""
    import faiss

    path = folder / INDEX_FILE
    if not path.is_file():
        raise IndexIncomplete(f"{path} is missing; build the index again")
    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise IndexIncomplete(f"{path} is damaged ({_first_line(error)}); build the index again") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def vector_blocks(index: Any, rows_per_block: int = 8192) -> Iterator[tuple[int, np.ndarray]]:
    """The stored vectors, block by block: (first row, float32 [<= rows_per_block, D])."""
    for start in range(0, index.ntotal, rows_per_block):
        yield start, index.reconstruct_n(start, min(rows_per_block, index.ntotal - start))

"""An encoder without a model: first-class test code, for tests that need retrieval but no weights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from retrieval_index.encoder import EncoderSpec, normalised, prefixed


class HashedWordsEncoder:
    """Each word has a fixed random vector (seeded by its hash); a text is the sum of its words, normalised.

    Deterministic everywhere, so that texts with the same words are near each other. ``seen`` records every
    text as the model would see it (prefixes included); a text holding ``poison`` gets a vector of NaN.
    """

    def __init__(self, spec: EncoderSpec | None = None, *, dims: int = 64, poison: str | None = None) -> None:
        self.spec = spec or EncoderSpec(path="hashed-words")
        self.fingerprint = hashlib.sha256(f"hashed-words-{dims}".encode()).hexdigest()
        self.dims = dims
        self.seen: list[str] = []
        self._poison = poison

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        return self._encode([prefixed(query, self.spec.query_prefix) for query in queries])

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        return self._encode([prefixed(passage, self.spec.passage_prefix) for passage in passages])

    def _encode(self, texts: list[str]) -> np.ndarray:
        self.seen += texts
        vectors = np.stack([self._vector(text) for text in texts]).astype(np.float32)
        return normalised(vectors)

    def _vector(self, text: str) -> np.ndarray:
        if self._poison is not None and self._poison in text:
            return np.full(self.dims, np.nan)
        words = re.findall(r"\w+", text.lower()) or [text]
        return np.sum([_word_vector(word, self.dims) for word in words], axis=0)


@lru_cache(maxsize=1 << 16)
def _word_vector(word: str, dims: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(dims)

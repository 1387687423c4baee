"""First-class test code: an encoder without a model, for tests that need retrieval but no weights, and a tiny model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from retrieval_index.encoder import EncoderSpec, normalised, prefixed

# All that the tiny model knows, beside "query:"
TINY_WORDS = ["amber", "birch", "cedar", "delta", "ember", "frost", "grove", "haven"]


class HashedWordsEncoder:
    """Each word has a fixed random vector (seeded by its hash); a text is the sum of its words, normalised.

    Deterministic everywhere, so that texts with the same words are near each other. ``seen`` records every
    text as the model would see it (prefixes included); a text holding ``poison`` gets a vector of NaN.
    """

    def __init__(self, spec: EncoderSpec | None = None, *, dims: int = 64, poison: str | None = None) -> None:
        self.spec = spec or EncoderSpec(path="hashed-words")
        self.fingerprint = hashlib.sha256(f"hashed-words-{dims}".encode()).hexdigest()
        self.dims, self.computes = dims, "hashes, float32"
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


def save_tiny_model(folder: Path) -> None:
    """A random BERT of two layers, 32 dims and 64 positions, with a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *TINY_WORDS, "query:"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    ).save_pretrained(folder)

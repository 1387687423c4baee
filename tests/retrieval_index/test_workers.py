"""Encoding in several processes: over Ray Data, and by sentence-transformers' pool."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage
from retrieval_index.encode_shards import encode_on_ray
from retrieval_index.encoder import Encoder, EncoderSpec
from retrieval_index.fetch import ENCODERS, is_fetched
from retrieval_index.index import INDEX_FILE
from retrieval_index.testing import HashedWordsEncoder

PASSAGES = [Passage(str(n), f"title {n}", f"word{n % 7} and word{n}") for n in range(450)]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'agent-rl[ray]'")
def test_a_build_over_ray_is_the_same_to_the_byte(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 100)
    here, there = tmp_path / "here", tmp_path / "there"
    build_index(PASSAGES, HashedWordsEncoder(), here, progress=False)
    main = HashedWordsEncoder()
    build_index(PASSAGES, main, there, progress=False, encode=encode_on_ray(2, 0.0, HashedWordsEncoder))
    assert (there / INDEX_FILE).read_bytes() == (here / INDEX_FILE).read_bytes()
    assert not [text for text in main.seen if text.startswith('"')]  # the actors encoded, this process did not


@pytest.mark.slow
@pytest.mark.skipif(not is_fetched(ENCODERS["minilm"]), reason="not fetched: agent-rl fetch minilm")
def test_worker_processes_give_the_vectors_of_one_process():
    texts = [f"passage number {n} " + "word " * (n % 17) for n in range(40)]
    spec = EncoderSpec(dtype="float32")
    several = Encoder(spec, workers=2)
    try:
        assert np.allclose(several.encode_passages(texts), Encoder(spec).encode_passages(texts), atol=1e-5)
    finally:
        several.close()

"""A real sentence-transformers model: a tiny random one, and MiniLM where it can be had."""

from __future__ import annotations

import dataclasses
import itertools
import shutil

import numpy as np
import pytest

from retrieval_index.batches import batches_by_length
from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage
from retrieval_index.encoder import Encoder, EncoderSpec
from retrieval_index.errors import EncoderError, IndexMismatch
from retrieval_index.fetch import MINILM, is_fetched
from retrieval_index.readers import read_corpus
from retrieval_index.retriever import Retriever
from retrieval_index.testing import TINY_WORDS as WORDS


def _spec(tiny, **changes) -> EncoderSpec:
    return EncoderSpec(path=str(tiny), max_tokens=32, dtype="float32", **changes)


@pytest.mark.slow
def test_results_are_in_order_and_do_not_depend_on_the_batch(tiny):
    encoder = Encoder(_spec(tiny), batch_size=3)
    texts = [" ".join(WORDS[: 1 + n % 8]) for n in range(10)]
    together = encoder.encode_queries(texts)
    assert together.dtype == np.float32
    assert together.shape == (10, 32)
    alone = np.concatenate([encoder.encode_queries([text]) for text in texts])
    assert np.allclose(together, alone, atol=1e-5)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


@pytest.mark.slow
def test_pooling_normalisation_prefix_and_dtype_do_what_they_say(tiny):
    mean = Encoder(_spec(tiny)).encode_queries(["amber birch"])
    assert not np.allclose(mean, Encoder(_spec(tiny, pooling="cls")).encode_queries(["amber birch"]), atol=1e-3)
    long = Encoder(_spec(tiny, normalise=False)).encode_queries(["amber birch"])
    assert np.allclose(mean, long / np.linalg.norm(long), atol=1e-6)
    prefixed = Encoder(_spec(tiny, query_prefix="query: "))
    with_prefix = prefixed.encode_queries(["amber", "query: amber"])
    assert np.allclose(with_prefix[0], with_prefix[1], atol=1e-6)
    assert not np.allclose(with_prefix[0], prefixed.encode_passages(["amber"])[0], atol=1e-3)
    half = Encoder(dataclasses.replace(_spec(tiny), dtype="bfloat16")).encode_queries(["amber birch"])
    assert half.dtype == np.float32
    assert 0 < np.abs(half - mean).max() < 0.05


@pytest.mark.slow
def test_what_an_encoder_refuses(tiny, tmp_path):
    with pytest.raises(ValueError, match="query 1 of 2 is empty"):
        Encoder(_spec(tiny)).encode_queries(["amber", " \n"])
    with pytest.raises(EncoderError, match="max_tokens=65 is above the 64"):
        Encoder(dataclasses.replace(_spec(tiny), max_tokens=65))
    with pytest.raises(EncoderError, match=r"no \*\.safetensors"):
        Encoder(EncoderSpec(path=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(EncoderError, match="cannot be loaded"):
        Encoder(EncoderSpec(path=str(tmp_path)))


@pytest.mark.slow
def test_an_index_knows_its_model_by_the_weights(tiny, tmp_path):
    passages = [Passage(word, word, f"{word} {other}") for word, other in itertools.pairwise(WORDS)]
    build_index(passages, _spec(tiny), tmp_path / "i", progress=False)
    moved = shutil.copytree(tiny, tmp_path / "moved")
    Retriever.open(tmp_path / "i", dataclasses.replace(_spec(tiny), path=str(moved)))
    weights = moved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(IndexMismatch, match="weights"):
        Retriever.open(tmp_path / "i", dataclasses.replace(_spec(tiny), path=str(moved)))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_a_replica_has_an_encoder_of_its_own_over_the_same_index(tiny, tmp_path, engine):
    passages = [Passage(word, "", word) for word in WORDS]
    if engine != "torch":
        pytest.importorskip(engine, reason=f"pip install 'agent-rl[{engine}]'")
    build_index(passages, _spec(tiny), tmp_path / "i", progress=False)
    first = Retriever.open(tmp_path / "i", engine=engine)
    second = first.replica()
    searchers = [retriever._searchers[0] for retriever in (first, second)]
    assert searchers[0].index is searchers[1].index
    assert searchers[0].encoder is not searchers[1].encoder
    assert second.search(WORDS, 3) == first.search(WORDS, 3)


@pytest.mark.slow
def test_minilm_finds_real_passages(shared_data, tmp_path):
    if not is_fetched(MINILM):
        pytest.skip("minilm is not in the cache; fetch it with `agent-rl fetch minilm`")
    passages = itertools.islice(read_corpus(shared_data / "qa_multihop" / "corpus.jsonl"), 300)
    manifest = build_index(passages, EncoderSpec(), tmp_path / "i", progress=False)
    asked, found = manifest.card.self_retrieval
    assert found >= asked - 1
    (hits,) = Retriever.open(tmp_path / "i").search(["When did the mother of Lothair II die?"], 3)
    assert "Lothair II" in [hit.title for hit in hits]


def test_batches_are_of_like_length_and_bounded():
    lengths = [5, 100, 7, 6, 600, 5, 90]
    batches = list(batches_by_length(lengths, most_texts=3, most_tokens=200))
    assert batches == [[0, 5, 3], [2, 6], [1], [4]]
    assert list(batches_by_length(lengths, 10, None)) == [[0, 5, 3, 2, 6, 1, 4]]
    assert list(batches_by_length([], 3, 5)) == []

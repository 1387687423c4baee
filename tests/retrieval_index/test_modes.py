"""BM25, fusion and reranking behind the one retriever."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from retrieval_index.builder import IndexOptions, build_index
from retrieval_index.corpus import Passage
from retrieval_index.errors import BM25Unavailable, IndexMismatch
from retrieval_index.java import find_java, java_version, load_lucene
from retrieval_index.ranking import reciprocal_rank_fusion
from retrieval_index.retriever import Retriever
from retrieval_index.testing import HashedWordsEncoder

PASSAGES = [
    Passage("lima", "Lima", "Lima is the capital of Peru."),
    Passage("quito", "Quito", "Quito is the capital of Ecuador."),
    Passage("moss", "Moss", "Moss grows on stones."),
    Passage("owls", "", "Owls hunt at night."),
]
needs_lucene = pytest.mark.skipif(
    importlib.util.find_spec("pyserini") is None, reason="pyserini is not installed: pip install 'agent-rl[bm25]'"
)


def test_reciprocal_ranks_are_summed():
    fused = reciprocal_rank_fusion([[(7, 0.9), (8, 0.8)], [(9, 30.0), (8, 20.0)]], 2)
    assert fused == [(8, pytest.approx(2 / 62)), (7, pytest.approx(1 / 61))]


class WordOverlap:
    """Scores a pair by the words that both have, and counts its calls."""

    def __init__(self):
        self.calls = []

    def score(self, pairs):
        self.calls.append(len(pairs))
        return np.array([len(set(q.lower().split()) & set(p.lower().split())) for q, p in pairs], dtype=np.float32)


def test_a_reranker_orders_the_first_hits_anew_in_one_call(tmp_path):
    build_index(PASSAGES, HashedWordsEncoder(), tmp_path / "i", progress=False)
    scorer = WordOverlap()
    retriever = Retriever.open(tmp_path / "i", HashedWordsEncoder(), reranker=scorer, rerank_depth=4)
    found = retriever.search(["hunt at night.", "", "grows on stones."], 1)
    assert [[hit.id for hit in hits] for hits in found] == [["owls"], [], ["moss"]]
    assert found[0][0].score == 3.0
    assert scorer.calls == [8]


def test_a_mode_that_the_index_does_not_have_is_refused(tmp_path):
    build_index(PASSAGES, HashedWordsEncoder(), tmp_path / "i", progress=False)
    with pytest.raises(IndexMismatch, match=r"index\.bm25=true"):
        Retriever.open(tmp_path / "i", HashedWordsEncoder(), mode="hybrid")


def test_only_an_encoder_that_can_be_loaded_again_has_replicas(tmp_path):
    build_index(PASSAGES, HashedWordsEncoder(), tmp_path / "i", progress=False)
    with pytest.raises(IndexMismatch, match="HashedWordsEncoder"):
        Retriever.open(tmp_path / "i", HashedWordsEncoder()).replica()


def test_a_java_that_is_too_old_is_named(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    assert java_version(tmp_path) == 17
    assert java_version(tmp_path / "none") is None
    monkeypatch.setattr("retrieval_index.java.java_homes", lambda: [tmp_path])
    with pytest.raises(BM25Unavailable, match=r"needs Java 21 or later, found: .*Java 17.*agent-rl\[bm25\]"):
        find_java()


@pytest.mark.skipif(importlib.util.find_spec("pyserini") is not None, reason="pyserini is installed")
def test_without_pyserini_the_message_says_what_to_install(tmp_path):
    with pytest.raises(BM25Unavailable, match=r"pip install 'agent-rl\[bm25\]'"):
        build_index(PASSAGES, HashedWordsEncoder(), tmp_path / "i", options=IndexOptions(kind="bm25"), progress=False)
    assert not (tmp_path / "i").exists()
    with pytest.raises(BM25Unavailable):
        load_lucene()


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("both") / "i"
    build_index(PASSAGES, HashedWordsEncoder(), out, options=IndexOptions(bm25=True), progress=False)
    return out


@needs_lucene
@pytest.mark.slow
def test_lucene_finds_words_and_survives_any_query(both):
    retriever = Retriever.open(both, mode="bm25")
    queries = ["hunting owl", "???", "", "capital AND (", "peru " * 20_000]
    found = retriever.search(queries, 10)
    assert [[hit.id for hit in hits] for hits in found[:3]] == [["owls"], [], []]
    assert {hit.id for hit in found[3]} == {"lima", "quito"}
    assert found[4][0].id == "lima"


@needs_lucene
@pytest.mark.slow
def test_hybrid_is_the_fusion_of_the_two(both):
    encoder = HashedWordsEncoder()
    found = {
        mode: [hit.id for hit in Retriever.open(both, encoder, mode=mode).search(["capital of Ecuador"], 4)[0]]
        for mode in ("dense", "bm25", "hybrid")
    }
    row = {p.id: n for n, p in enumerate(PASSAGES)}
    rankings = [[(row[name], 0.0) for name in found[mode]] for mode in ("dense", "bm25")]
    assert found["hybrid"] == [PASSAGES[n].id for n, _ in reciprocal_rank_fusion(rankings, 4)]
    assert found["hybrid"][0] == "quito"


@needs_lucene
@pytest.mark.slow
def test_bm25_alone_needs_no_encoder(tmp_path):
    manifest = build_index(
        PASSAGES, HashedWordsEncoder(), tmp_path / "i", options=IndexOptions(kind="bm25"), progress=False
    )
    assert (manifest.kind, manifest.encoder, manifest.dims, manifest.bm25) == ("bm25", None, 0, True)
    assert Retriever.open(tmp_path / "i").search(["owls"], 3)[0][0].id == "owls"

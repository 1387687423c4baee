"""Builds that are killed and resumed, every kind's card against an independent check, other people's indexes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import faiss
import numpy as np
import pytest

from retrieval_index.builder import IndexOptions, build_index
from retrieval_index.corpus import Passage
from retrieval_index.encoder import EncoderSpec
from retrieval_index.errors import IndexIncomplete, IndexMismatch
from retrieval_index.imported import import_index
from retrieval_index.index import INDEX_FILE
from retrieval_index.kinds import KINDS
from retrieval_index.retriever import Retriever
from retrieval_index.testing import HashedWordsEncoder

WORDS = [f"w{n}" for n in range(150)]
# OPQ trains its rotation for a minute on one core
EVERY_KIND = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind.endswith("ivf_pq") else []) for kind in (*KINDS, "factory")
]
PAIRS = ((a, b) for a in WORDS for b in WORDS)
MANY = [Passage(f"p{n}", f"{a} {b}", f"about {a} and {b}") for n, (a, b) in enumerate(PAIRS)]
MANY = MANY[:11_000]


def corpus_file(path: Path, passages=MANY) -> Path:
    path.write_text("".join(json.dumps({"id": p.id, "contents": p.contents}) + "\n" for p in passages))
    return path


class Stopping(HashedWordsEncoder):
    """Breaks off, as a killed process would, when it has encoded so many passages."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def encode_passages(self, passages):
        if len(self.seen) >= self.after:
            raise KeyboardInterrupt
        return super().encode_passages(passages)


@pytest.mark.parametrize("kind", ["flat", "sq8"])
def test_a_build_stopped_twice_encodes_nothing_twice_and_is_the_same_to_the_byte(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 100)
    file, options = corpus_file(tmp_path / "c.jsonl", MANY[:1050]), IndexOptions(kind=kind)
    seen = []
    for encoder in (Stopping(300), Stopping(400)):
        with pytest.raises(KeyboardInterrupt):
            build_index(file, encoder, tmp_path / "i", options=options, progress=False)
        assert not (tmp_path / "i").exists()
        seen += encoder.seen
    last, said = HashedWordsEncoder(), []
    manifest = build_index(file, last, tmp_path / "i", options=options, progress=False, report=said.append)
    assert said[:2] == ["encoding with hashes, float32", "resumed: 700 of 1050 passages are encoded already"]
    seen += [text for text in last.seen if text.startswith('"')]
    assert sorted(seen) == sorted(p.contents for p in MANY[:1050])
    whole = build_index(file, HashedWordsEncoder(), tmp_path / "whole", options=options, progress=False)
    for name in (INDEX_FILE, "passages.jsonl", "offsets.npy"):
        assert (tmp_path / "i" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert manifest.card.recall == whole.card.recall
    assert {p.name for p in (tmp_path / "i").iterdir()} == {
        INDEX_FILE,
        "passages.jsonl",
        "offsets.npy",
        "manifest.json",
    }


@pytest.mark.parametrize("change", ["corpus", "encoder", "weights"])
def test_vectors_of_another_corpus_or_encoder_are_not_taken_up(tmp_path, monkeypatch, change):
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 100)
    file = corpus_file(tmp_path / "c.jsonl", MANY[:500])
    with pytest.raises(KeyboardInterrupt):
        build_index(file, Stopping(300), tmp_path / "i", progress=False)
    encoder = HashedWordsEncoder(
        EncoderSpec(path="hashed-words", passage_prefix="p: ") if change == "encoder" else None
    )
    if change == "weights":
        encoder.fingerprint = "f" * 64
    if change == "corpus":
        corpus_file(file, [Passage("new", "new", "new"), *MANY[1:500]])
    build_index(file, encoder, tmp_path / "i", progress=False)
    assert len([text for text in encoder.seen if "about" in text or "new" in text]) >= 500
    (hits,) = Retriever.open(tmp_path / "i", encoder).search([MANY[42].contents], 1)
    assert hits[0].id == "p42"


def test_a_resumed_build_tells_the_seconds_of_all_its_tries(tmp_path, monkeypatch):
    class Slow(Stopping):
        def encode_passages(self, passages):
            time.sleep(0.3)
            return super().encode_passages(passages)

    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 100)
    for after in (100, 200):  # one shard, then two; each time the next is lost
        with pytest.raises(KeyboardInterrupt):
            build_index(corpus_file(tmp_path / "c.jsonl", MANY[:400]), Slow(after), tmp_path / "i", progress=False)
    manifest = build_index(corpus_file(tmp_path / "c.jsonl", MANY[:400]), Slow(400), tmp_path / "i", progress=False)
    assert manifest.card.build_seconds >= 4 * 0.3


def test_a_touched_but_equal_corpus_is_taken_up(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 100)
    file = corpus_file(tmp_path / "c.jsonl", MANY[:500])
    with pytest.raises(KeyboardInterrupt):
        build_index(file, Stopping(300), tmp_path / "i", progress=False)
    moved = corpus_file(tmp_path / "elsewhere.jsonl", MANY[:500])
    encoder = HashedWordsEncoder()
    build_index(moved, encoder, tmp_path / "i", progress=False)
    assert len([text for text in encoder.seen if text.startswith('"')]) == 200


SLOW_BUILD = """
import sys, time
import retrieval_index.builder as builder
from retrieval_index.testing import HashedWordsEncoder

builder.SHARD_PASSAGES = 100

class Slow(HashedWordsEncoder):
    def encode_passages(self, texts):
        time.sleep(0.2)
        return super().encode_passages(texts)

builder.build_index(sys.argv[1], Slow(), sys.argv[2], progress=False)
"""


def test_a_process_that_is_killed_outright_is_taken_up(tmp_path, monkeypatch):
    file = corpus_file(tmp_path / "c.jsonl", MANY[:600])
    child = subprocess.Popen([sys.executable, "-c", SLOW_BUILD, str(file), str(tmp_path / "i")])
    shards = tmp_path / ".i.building" / "vectors"
    deadline = time.monotonic() + 60
    while len(list(shards.glob("*.npy"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    (shards / "000000.npy").write_bytes(b"")  # what a power cut may leave of a renamed file
    said = []
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 100)
    build_index(file, HashedWordsEncoder(), tmp_path / "i", progress=False, report=said.append)
    assert said[1].startswith("resumed: ")
    assert len(Retriever.open(tmp_path / "i", HashedWordsEncoder())) == 600


@pytest.fixture(scope="module")
def vectors():
    encoder = HashedWordsEncoder()
    return encoder.encode_passages([p.contents for p in MANY]), encoder


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_card_of_every_kind_agrees_with_an_independent_check(tmp_path, vectors, kind):
    matrix, encoder = vectors
    options = IndexOptions(kind=kind, factory="IVF16,Flat" if kind == "factory" else None)
    card = build_index(MANY, encoder, tmp_path / "i", options=options, progress=False).card
    titles = [MANY[row].title for row in np.linspace(0, len(MANY) - 1, 64).astype(int)]
    queries = encoder.encode_queries(titles)
    exact = np.sort(queries @ matrix.T, axis=1)[:, ::-1][:, :10]
    for mmap in (False, True):
        found = Retriever.open(tmp_path / "i", HashedWordsEncoder(), mmap=mmap).search(titles, 10)
        scores = np.array([[queries[q] @ matrix[int(hit.id[1:])] for hit in hits] for q, hits in enumerate(found)])
        for at in (1, 3, 10):
            share = float((scores[:, :at] >= exact[:, [at - 1]] - 1e-3).mean())
            assert card.recall[str(at)] == pytest.approx(share, abs=0.03)
    if kind == "flat":
        assert card.recall["10"] == 1.0


def public_index(path: Path, passages, prefix="") -> Path:
    encoder = HashedWordsEncoder()
    index = faiss.IndexFlatIP(encoder.dims)
    index.add(encoder.encode_passages([prefix + p.contents for p in passages]))
    faiss.write_index(index, str(path))
    return path


def test_a_public_index_is_taken_over(tmp_path):
    file, corpus = public_index(tmp_path / "e5_Flat.index", MANY[:300]), corpus_file(tmp_path / "c.jsonl", MANY[:300])
    manifest = import_index(file, corpus, HashedWordsEncoder(), tmp_path / "i", progress=False, report=lambda _: None)
    assert (manifest.kind, manifest.factory, manifest.card.recall["10"]) == ("imported", "IndexFlatIP", 1.0)
    (hits,) = Retriever.open(tmp_path / "i", HashedWordsEncoder()).search([MANY[77].title], 1)
    assert hits[0].title == MANY[77].title
    assert os.path.samefile(file, tmp_path / "i" / INDEX_FILE)


@pytest.mark.parametrize(
    ("passages", "prefix", "dims", "error", "says"),
    [
        (MANY[:299], "", 64, IndexIncomplete, "300 vectors and .* 299 passages"),
        ([*MANY[1:300], MANY[0]], "", 64, IndexMismatch, "cosine"),
        (MANY[:300], "passage and more words: ", 64, IndexMismatch, "other prefixes"),
        (MANY[:300], "", 32, IndexMismatch, "has 64 dims and .* gives 32"),
    ],
)
def test_a_public_index_that_does_not_fit_is_refused(tmp_path, passages, prefix, dims, error, says):
    file, corpus = public_index(tmp_path / "x.index", MANY[:300], prefix), corpus_file(tmp_path / "c.jsonl", passages)
    with pytest.raises(error, match=says):
        import_index(file, corpus, HashedWordsEncoder(dims=dims), tmp_path / "i", progress=False)
    assert not (tmp_path / "i").exists()
    assert file.exists()

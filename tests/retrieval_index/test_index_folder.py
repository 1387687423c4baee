"""Building an index, opening it, and searching it; with an encoder that needs no model."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from retrieval_index.builder import build_index
from retrieval_index.card import recall, true_and_exact_scores
from retrieval_index.corpus import Passage
from retrieval_index.encoder import EncoderSpec
from retrieval_index.errors import (
    CorpusError,
    EncoderError,
    IndexExists,
    IndexIncomplete,
    IndexMismatch,
    IndexNotFound,
    IndexNotWritable,
)
from retrieval_index.index import MANIFEST_FILE, read_faiss, read_manifest, vector_blocks
from retrieval_index.retriever import MAX_K, Retriever
from retrieval_index.testing import HashedWordsEncoder

WORDS = ("amber", "birch", "cedar", "delta", "ember", "frost", "grove", "haven", "inlet", "jetty", "knoll")
WORDS += ("larch", "moss", "north", "opal", "pine")
PASSAGES = [
    Passage(f"p{n}", f"{a} {b}", f"{a} {b} stands {n} miles off")
    for n, (a, b) in enumerate((a, b) for a in WORDS for b in WORDS if a < b)
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("indexes") / "words"
    build_index(PASSAGES, HashedWordsEncoder(), out, progress=False)
    return out


@pytest.fixture
def folder(built, tmp_path):
    return shutil.copytree(built, tmp_path / "copy")


def test_search_finds_the_passage_and_its_score(built):
    (hits,) = Retriever.open(built, HashedWordsEncoder()).search(["delta moss"], 3)
    assert hits[0].title == "delta moss"
    encoder = HashedWordsEncoder()
    passage = next(p for p in PASSAGES if p.title == "delta moss")
    exact = float(encoder.encode_queries(["delta moss"])[0] @ encoder.encode_passages([passage.contents])[0])
    assert hits[0].score == pytest.approx(exact, abs=1e-6)
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


def test_the_card_is_measured(built):
    manifest = read_manifest(built)
    assert manifest.passages == len(PASSAGES)
    assert manifest.card.recall == {"1": 1.0, "3": 1.0, "10": 1.0}
    assert manifest.card.self_retrieval == (16, 16)
    text = manifest.describe()
    assert f"{len(PASSAGES)} passages" in text
    assert manifest.corpus_sha256 in text


def test_recall_sees_a_bad_index():
    exact = np.array([[0.9, 0.8, 0.7, 0.6]])
    assert recall(np.array([[0.8, 0.7, 0.6, 0.5]]), exact)["1"] == 0.0
    assert recall(np.array([[0.9, 0.7, 0.6, 0.5]]), exact)["3"] == pytest.approx(2 / 3, abs=1e-4)


def test_exact_scores_agree_over_blocks(built):
    index = read_faiss(built)
    queries = HashedWordsEncoder().encode_queries(["opal pine", "amber inlet"])
    scores, rows = index.search(queries, 5)
    true, exact = true_and_exact_scores(vector_blocks(index, 7), queries, rows, 5)
    assert np.allclose(exact, scores, atol=1e-5)
    assert np.allclose(true, scores, atol=1e-5)


def test_prefixes_are_added_once(tmp_path):
    spec = EncoderSpec(path="hashed-words", query_prefix="query: ", passage_prefix="passage: ")
    build_index(PASSAGES[:3], encoder := HashedWordsEncoder(spec), tmp_path / "i", progress=False)
    assert f"passage: {PASSAGES[0].contents}" in encoder.seen
    encoder.seen.clear()
    Retriever.open(tmp_path / "i", encoder).search(["capital of Peru", "query: capital of Peru"], 1)
    assert encoder.seen == ["query: capital of Peru"] * 2


def test_an_empty_query_is_not_encoded_and_finds_nothing(built):
    encoder = HashedWordsEncoder()
    found = Retriever.open(built, encoder).search(["", "   ", "opal pine"], 2)
    assert found[:2] == [[], []]
    assert encoder.seen == ["opal pine"]
    alone = Retriever.open(built, encoder).search(["opal pine"], 2)
    assert [h.id for h in found[2]] == [h.id for h in alone[0]]


def test_a_nan_vector_harms_only_its_own_query(built):
    retriever = Retriever.open(built, HashedWordsEncoder(poison="toad"))
    found = retriever.search_each(["opal pine", "toad", "amber inlet"], 1)
    assert found[1] is None
    assert [found[0][0].title, found[2][0].title] == ["opal pine", "amber inlet"]
    with pytest.raises(EncoderError, match="toad"):
        retriever.search(["toad"], 1)


def test_k_beyond_the_corpus_gives_each_passage_once(tmp_path):
    build_index(PASSAGES[:3], HashedWordsEncoder(), tmp_path / "i", progress=False)
    (hits,) = Retriever.open(tmp_path / "i", HashedWordsEncoder()).search(["amber birch"], 5)
    assert sorted(hit.id for hit in hits) == ["p0", "p1", "p2"]


@pytest.mark.parametrize("k", [0, -1, MAX_K + 1, 2.0, True])
def test_a_k_out_of_bounds_is_refused_in_words(built, k):
    with pytest.raises(ValueError, match=rf"k={k!r}.*1 to {MAX_K}"):
        Retriever.open(built, HashedWordsEncoder()).search(["opal"], k)


def test_an_encoder_with_another_record_is_refused(built):
    other = HashedWordsEncoder(EncoderSpec(path="hashed-words", query_prefix="query: ", max_tokens=64))
    with pytest.raises(IndexMismatch) as caught:
        Retriever.open(built, other)
    text = str(caught.value)
    assert "encoder.query_prefix: built with '', given 'query: '" in text
    assert "encoder.max_tokens: built with 256, given 64" in text


def test_other_weights_are_refused(built):
    other = HashedWordsEncoder()
    other.fingerprint = "f" * 64
    with pytest.raises(IndexMismatch, match=other.fingerprint):
        Retriever.open(built, other)


def test_the_same_model_under_another_path_is_accepted(built):
    Retriever.open(built, HashedWordsEncoder(EncoderSpec(path="elsewhere")))


def test_rows_and_vectors_must_agree(folder, tmp_path):
    build_index(PASSAGES[:50], HashedWordsEncoder(), tmp_path / "small", progress=False)
    for name in ("passages.jsonl", "offsets.npy"):
        shutil.copy(tmp_path / "small" / name, folder / name)
    with pytest.raises(IndexIncomplete) as caught:
        Retriever.open(folder, HashedWordsEncoder())
    for part in ("50 passages", f"{len(PASSAGES)} vectors", "passages.jsonl", "index.faiss"):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["manifest.json", "index.faiss", "passages.jsonl", "offsets.npy"])
def test_a_missing_part_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(IndexIncomplete, match=name):
        Retriever.open(folder, HashedWordsEncoder())


@pytest.mark.parametrize("name", ["manifest.json", "index.faiss", "passages.jsonl", "offsets.npy"])
@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_part_cut_short_is_refused(folder, name, keep):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(IndexIncomplete):
        Retriever.open(folder, HashedWordsEncoder())


@pytest.mark.parametrize(
    ("key", "value"),
    [("path", 5), ("pooling", "max"), ("max_tokens", "256"), ("max_tokens", True), ("normalise", 1), ("dtype", None)],
)
def test_an_encoder_record_of_wrong_values_is_refused(folder, key, value):
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    manifest["encoder"][key] = value
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(IndexIncomplete, match=rf"encoder\.{key} is {value!r}"):
        read_manifest(folder)


def test_a_manifest_that_is_no_text_is_refused(folder):
    (folder / MANIFEST_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(IndexIncomplete, match="not an index manifest"):
        read_manifest(folder)


@pytest.mark.parametrize("place", ["file/i", "file/deeper/i", "/proc/i"])
def test_a_place_that_cannot_be_written_is_named_at_once(tmp_path, place):
    """On /proc a FileLock would wait for ever."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexNotWritable, match=r"cannot be written .*choose another"):
        build_index(PASSAGES[:5], HashedWordsEncoder(), tmp_path / place, progress=False)


def test_what_a_build_was_replacing_when_it_was_killed_is_put_back(folder):
    folder.rename(folder.parent / f".{folder.name}.replaced")
    with pytest.raises(IndexExists, match="overwrite=true"):
        build_index(PASSAGES[:5], HashedWordsEncoder(), folder, progress=False)
    assert len(Retriever.open(folder, HashedWordsEncoder())) == len(PASSAGES)


def test_no_index_says_how_to_make_one(tmp_path):
    with pytest.raises(IndexNotFound, match="agent-rl build-index"):
        Retriever.open(tmp_path / "none")


def test_an_index_is_replaced_only_when_asked(folder):
    with pytest.raises(IndexExists, match="overwrite=true"):
        build_index(PASSAGES[:5], HashedWordsEncoder(), folder, progress=False)
    assert read_manifest(folder).passages == len(PASSAGES)
    build_index(PASSAGES[:5], HashedWordsEncoder(), folder, overwrite=True, progress=False)
    assert len(Retriever.open(folder, HashedWordsEncoder())) == 5


def test_a_folder_that_is_no_index_is_never_deleted(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(IndexExists, match="not an index"):
        build_index(PASSAGES, HashedWordsEncoder(), tmp_path, overwrite=True, progress=False)
    assert (tmp_path / "thesis.txt").exists()


def test_a_failed_build_leaves_the_old_index_and_nothing_else(folder):
    def broken():
        yield from PASSAGES[:10]
        raise CorpusError("line 11")

    with pytest.raises(CorpusError):
        build_index(broken(), HashedWordsEncoder(), folder, overwrite=True, progress=False)
    assert read_manifest(folder).passages == len(PASSAGES)
    assert [p.name for p in folder.parent.iterdir() if "building" in p.name] == []


def test_what_a_killed_build_left_is_cleared(tmp_path):
    left = tmp_path / ".i.building"
    left.mkdir()
    (left / "index.faiss").write_bytes(b"half")
    build_index(PASSAGES[:5], HashedWordsEncoder(), tmp_path / "i", progress=False)
    assert not left.exists()
    assert len(Retriever.open(tmp_path / "i", HashedWordsEncoder())) == 5


def test_the_corpus_sum_does_not_depend_on_the_file_form(tmp_path):
    contents, fields = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    contents.write_text("".join(json.dumps({"id": p.id, "contents": p.contents}) + "\r\n" for p in PASSAGES[:9]))
    fields.write_text("".join(json.dumps(dataclasses.asdict(p)) + "\n" for p in PASSAGES[:9]))
    sums = {
        build_index(path, HashedWordsEncoder(), tmp_path / path.stem, progress=False).corpus_sha256
        for path in (contents, fields)
    }
    assert len(sums) == 1


def test_a_passage_without_a_vector_stops_the_build_and_is_named(tmp_path):
    with pytest.raises(EncoderError, match="'p4'"):
        build_index(PASSAGES, HashedWordsEncoder(poison=" 4 miles"), tmp_path / "i", progress=False)
    assert not (tmp_path / "i").exists()


def test_an_encoder_that_sees_no_difference_stops_the_build(tmp_path):
    class Blind(HashedWordsEncoder):
        def encode_queries(self, queries):
            return self.encode_passages(["the same for all" for _ in queries])

    many = [Passage(f"x{n}", f"title{n}", f"text{n}") for n in range(1500)]
    with pytest.raises(EncoderError, match="none of 16 titles"):
        build_index(many, Blind(), tmp_path / "i", progress=False)


def test_shards_keep_rows_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval_index.builder.SHARD_PASSAGES", 7)
    build_index(PASSAGES, HashedWordsEncoder(), tmp_path / "i", progress=False)
    retriever = Retriever.open(tmp_path / "i", HashedWordsEncoder())
    found = retriever.search([p.contents for p in PASSAGES], 1)
    assert [hits[0].id for hits in found] == [p.id for p in PASSAGES]
    assert (tmp_path / "i" / MANIFEST_FILE).is_file()

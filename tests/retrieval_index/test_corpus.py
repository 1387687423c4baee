"""Reading corpora, and finding passages by row."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_index.corpus import Passage, PassageStore, split_contents, write_store
from retrieval_index.errors import CorpusError, IndexIncomplete
from retrieval_index.readers import read_corpus

LIMA = {"id": "a", "contents": '"Lima"\nLima is the capital of Peru.'}
QUITO = {"id": 7, "title": "Quito", "text": "Quito is the capital of Ecuador."}


def _lines(*rows: dict) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_both_shapes_are_read(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(_lines(LIMA, QUITO))
    assert list(read_corpus(path)) == [
        Passage("a", "Lima", "Lima is the capital of Peru."),
        Passage("7", "Quito", "Quito is the capital of Ecuador."),
    ]


def test_bom_crlf_and_blank_lines_shift_nothing(tmp_path):
    plain, messy, zipped = tmp_path / "p.jsonl", tmp_path / "m.jsonl", tmp_path / "z.jsonl.gz"
    plain.write_bytes(_lines(LIMA, QUITO))
    messy.write_bytes(b"\xef\xbb\xbf\r\n" + _lines(LIMA).replace(b"\n", b"\r\n") + b"  \r\n\n" + _lines(QUITO))
    zipped.write_bytes(gzip.compress(messy.read_bytes()))
    assert list(read_corpus(plain)) == list(read_corpus(messy)) == list(read_corpus(zipped))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"id": "1"}', "'contents'"),
        (b'{"contents": "x"}', "'id'"),
        (b'{"id": "", "contents": "x"}', "'id'"),
        (b'{"id": true, "contents": "x"}', "'id'"),
        (b'{"id": "\\ud800", "contents": "x"}', "'id' holds a lone surrogate"),
        (b'{"id": "1", "contents": 5}', "'contents'"),
        (b'{"id": "1", "contents": "\\ud800"}', "surrogate"),
        (b'{"id": "1", "contents": " "}', "empty"),
        (b'["1"]', "object"),
        (b'{"id": ', "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_key(tmp_path, line, says):
    path = tmp_path / "c.jsonl"
    path.write_bytes(_lines(LIMA) + b"\n" + line + b"\n")
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(path))
    assert f"{path}:3" in str(caught.value)
    assert says in str(caught.value)


def test_a_gzip_file_cut_short_is_an_error(tmp_path):
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(_lines(*({"id": i, "text": "t" * 50} for i in range(500))))[:-20])
    with pytest.raises(CorpusError, match="not a whole gzip"):
        list(read_corpus(path))


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.text(min_size=1)), min_size=1))
def test_the_store_gives_back_what_went_in(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("store")
    passages = [
        Passage(f"id{n}", title, text.encode("utf-8", "replace").decode()) for n, (title, text) in enumerate(rows)
    ]
    assert write_store(passages, folder)[0] == len(passages)
    store = PassageStore(folder)
    assert [store[row] for row in reversed(range(len(store)))] == passages[::-1]


@given(
    st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs", "Zl", "Zp", "Cc"]), min_size=1),
    st.text(),
)
def test_title_and_text_survive_the_contents_shape(title, text):
    assert split_contents(Passage("x", title, text).contents) == (title, text)


def test_a_first_line_without_quotes_is_text():
    assert split_contents("Lima\nis a city") == ("", "Lima\nis a city")


def test_an_id_twice_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match=r"c\.jsonl: passage 3 has id 'a'"):
        write_store([Passage("a", "", "x"), Passage("b", "", "y"), Passage("a", "", "z")], tmp_path, "c.jsonl")


def test_no_passage_at_all_names_the_corpus(tmp_path):
    with pytest.raises(CorpusError, match=r"c\.jsonl has no passages"):
        write_store([], tmp_path, "c.jsonl")


def test_a_passage_beyond_four_gigabytes_is_found(tmp_path):
    line = json.dumps({"id": "far", "title": "", "text": "x"}).encode()
    start = 5 * 2**30
    with (tmp_path / "passages.jsonl").open("wb") as file:
        file.seek(start)  # a hole: it takes no space on the disk
        file.write(line)
    np.save(tmp_path / "offsets.npy", np.array([0, start, start + len(line)], dtype=np.int64))
    assert PassageStore(tmp_path)[1] == Passage("far", "", "x")


def test_a_store_of_two_halves_is_refused(tmp_path):
    write_store([Passage("a", "", "x"), Passage("b", "", "y")], tmp_path)
    path = tmp_path / "passages.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(IndexIncomplete, match="bytes"):
        PassageStore(tmp_path)


def test_real_passages_are_read(shared_data):
    passages = list(read_corpus(shared_data / "qa_multihop" / "corpus.jsonl"))
    assert len(passages) == 17_851
    assert all(passage.title and passage.text for passage in passages)
    first = next(read_corpus(shared_data / "searchr1_runs" / "corpus_wiki18_retrieved.jsonl.gz"))
    assert first.title == "Citibank"

"""Corpus formats: each gives the same passages, and a damaged file is named with its line."""

from __future__ import annotations

import csv
import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval_index.corpus import Passage
from retrieval_index.errors import CorpusError
from retrieval_index.readers import corpus_files, read_corpus, sample_rows

ROWS = [Passage(str(n), f"Title {n}", f'text "{n}"\twith a tab and\na line break') for n in range(300)]


def as_dicts(rows):
    return [{"id": p.id, "text": p.text, "title": p.title} for p in rows]


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(data)
    return sink.getvalue().to_pybytes()


def write(path, rows=ROWS):
    """The rows in the format that the name says."""
    name = path.name
    if ".parquet" in name:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(as_dicts(rows)), path)
        return path
    if ".tsv" in name:
        plain = path.parent / "plain"
        with plain.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, ["id", "text", "title"], delimiter="\t")
            table.writeheader()
            table.writerows(as_dicts(rows))
        data = plain.read_bytes()
    else:
        data = "".join(json.dumps(row) + "\n" for row in as_dicts(rows)).encode()
    pack = {".gz": gzip.compress, ".zst": zstd}.get(path.suffix, bytes)
    path.write_bytes(pack(data))
    return path


NAMES = ["c.jsonl", "c.jsonl.gz", "c.jsonl.zst", "c.tsv", "c.tsv.gz", "c.tsv.zst", "c.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_passages(tmp_path, name):
    assert list(read_corpus(write(tmp_path / name))) == ROWS


def test_a_folder_is_read_file_by_file_in_order_of_names(tmp_path):
    write(tmp_path / "b.parquet", ROWS[100:])
    write(tmp_path / "a.jsonl.zst", ROWS[:100])
    (tmp_path / "README.md").write_text("not a corpus")
    assert list(read_corpus(tmp_path)) == ROWS
    assert [file.name for file in corpus_files(tmp_path)] == ["a.jsonl.zst", "b.parquet"]


@pytest.mark.parametrize("name", ["c.jsonl.gz", "c.jsonl.zst", "c.tsv.gz", "c.tsv.zst", "c.parquet"])
def test_a_file_cut_short_is_an_error_and_not_a_shorter_corpus(tmp_path, name):
    path = write(tmp_path / name)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorpusError, match=rf"{name}:\d+: not a whole"):
        list(read_corpus(path))


@pytest.mark.parametrize("name", ["c.csv", "c.parquet.gz", "c", "c.jsonl.bz2"])
def test_an_unknown_format_names_the_known_ones(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(CorpusError, match=r"unknown corpus format; .*\.jsonl, .*\.parquet"):
        list(read_corpus(tmp_path / name))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("id\ttext\ttitle\n1\tonly two\n", ":2: 2 fields, the header has 3"),
        ("1\tsome text\ttitle\n", ":1: the header must name id, text"),
        ('id\ttext\n1\t"open quote\n', "not a line of tab-separated values"),
        ("id\ttext\n1\t\n", ":2: the passage is empty"),
    ],
)
def test_a_bad_tsv_line_is_named(tmp_path, content, says):
    (tmp_path / "c.tsv").write_text(content)
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(tmp_path / "c.tsv"))
    assert says in str(caught.value)


def test_a_tsv_with_bom_and_crlf(tmp_path):
    (tmp_path / "c.tsv").write_bytes(b"\xef\xbb\xbfid\ttext\ttitle\r\n7\tLima is in Peru\tLima\r\n")
    assert list(read_corpus(tmp_path / "c.tsv")) == [Passage("7", "Lima", "Lima is in Peru")]


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_passages_is_told_or_estimated(tmp_path, name):
    path = write(tmp_path / name)
    assert sample_rows(path, 1000) == (ROWS, 300, True)
    sample, rows, exact = sample_rows(path, 100)
    assert sample == ROWS[:100]
    # what is packed is read in blocks, here larger than the file: the estimate is only as good as the blocks are small
    assert rows == 300 if exact else (rows >= 101)
    if name == "c.jsonl":
        assert 100 < rows <= 330


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(min_size=1).filter(lambda text: text.strip() and "\0" not in text), min_size=1, max_size=5))
def test_any_text_survives_tsv(tmp_path_factory, texts):
    rows = [Passage(str(n), "", text) for n, text in enumerate(texts)]
    path = write(tmp_path_factory.mktemp("tsv") / "c.tsv", rows)
    assert list(read_corpus(path)) == rows

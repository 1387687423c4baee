"""Search in two passes: the rows of FAISS's exact search, whatever bfloat16 rounds away."""

from __future__ import annotations

import dataclasses

import faiss
import numpy as np
import pytest

from retrieval_index import halfscan
from retrieval_index.builder import IndexOptions, build_index
from retrieval_index.corpus import Passage
from retrieval_index.errors import IndexMismatch
from retrieval_index.halfscan import HalfScan
from retrieval_index.retriever import Retriever
from retrieval_index.testing import HashedWordsEncoder


def _index(vectors):
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _random(rows, dims, seed=0, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal((rows, dims)).astype(np.float32)


@pytest.mark.parametrize(("rows", "block"), [(5, 4), (300, 64), (3000, 65_536)])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_rows_and_scores_are_those_of_faiss(monkeypatch, rows, block, scale):
    monkeypatch.setattr(halfscan, "BLOCK", block)
    vectors, queries = _random(rows, 48, scale=scale), _random(20, 48, seed=1)
    index = _index(vectors)
    scan = HalfScan(index)
    for k in (1, 3, min(200, rows)):
        (scores, found), (wanted, exact) = scan.search(queries, k), index.search(queries, k)
        assert np.array_equal(found, exact)
        assert np.allclose(scores, wanted, rtol=1e-5, atol=1e-4 * scale)


def test_neighbours_that_bfloat16_cannot_tell_apart_are_searched_exactly():
    """A thousand vectors within 1e-3 of each other: the first pass cannot order them, and knows it."""
    vectors = np.ones((1000, 16), dtype=np.float32) + _random(1000, 16, scale=1e-3)
    index, queries = _index(vectors), np.abs(_random(8, 16, seed=1))
    scan = HalfScan(index)
    assert np.array_equal(scan.search(queries, 3)[1], index.search(queries, 3)[1])
    assert scan.doubted == 8
    apart = HalfScan(_index(_random(1000, 64)))
    apart.search(apart._full[:8].copy(), 1)
    assert apart.doubted == 0  # where scores are apart, nothing is searched twice


def test_equal_vectors_come_by_row():
    vectors = np.repeat(_random(4, 8), 50, axis=0)
    _, found = HalfScan(_index(vectors)).search(vectors[[60]], 40)
    assert found[0].tolist() == list(range(50, 90))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    passages = [Passage(str(n), f"title {n}", f"word{n} and word{n % 7}") for n in range(300)]
    path = tmp_path_factory.mktemp("scan") / "i"
    build_index(passages, HashedWordsEncoder(), path, progress=False)
    return path


def test_the_setting_decides(folder):
    found = {}
    for scan in ("bfloat16", "faiss"):
        retriever = Retriever.open(folder, HashedWordsEncoder(), scan=scan)
        assert (retriever._searchers[0].scan is not None) == (scan == "bfloat16")
        found[scan] = [[hit.id for hit in hits] for hits in retriever.search(["word3", "word5 title", "and"], 10)]
    assert found["bfloat16"] == found["faiss"]


@pytest.mark.parametrize("mmap", [True, False])
def test_what_has_no_vectors_in_memory_cannot_be_scanned(folder, tmp_path, mmap):
    if not mmap:
        passages = [dataclasses.replace(Passage("0", "t", "x"), id=str(n), text=f"word{n}") for n in range(20)]
        build_index(passages, HashedWordsEncoder(), tmp_path / "i", options=IndexOptions("sq8"), progress=False)
        folder = tmp_path / "i"
    says = "search.mmap=true" if mmap else "sq8"
    with pytest.raises(IndexMismatch, match=f"search.scan=bfloat16 needs index=flat in memory.*{says}"):
        Retriever.open(folder, HashedWordsEncoder(), scan="bfloat16", mmap=mmap)

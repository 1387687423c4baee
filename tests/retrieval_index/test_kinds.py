"""Kinds of index: their sizes and strings, the choice by memory, and the arithmetic of wiki-18."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from retrieval_index.errors import IndexKindError
from retrieval_index.kinds import KINDS, choose, index_bytes, index_kind, lists_for, new_index, vector_offset
from retrieval_index.plan import BuildPlan

WIKI18 = 21_015_324


def test_offsets_beyond_two_to_the_31(tmp_path):
    """facebookresearch/faiss#2685, #1595 (B43): element counts past 2^31 overflow."""
    assert vector_offset(2_999_999, 768) == 9_215_996_928
    assert vector_offset(np.int32(WIKI18), np.int32(768)) == 64_559_075_328


def test_the_sizes_of_wiki18():
    sizes = {kind: round(index_bytes(kind, WIKI18, 768) / 2**30, 1) for kind in KINDS}
    assert (sizes["flat"], sizes["flat_fp16"], sizes["sq8"]) == (60.1, 30.1, 15.0)
    assert sizes["opq_ivf_pq"] == 2.1
    assert lists_for(WIKI18) == 16384


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind.endswith("ivf_pq") else []) for kind in KINDS]
)
def test_a_size_is_that_of_the_file(kind):
    rows, dims = 12_000, 32
    vectors = np.random.default_rng(0).standard_normal((rows, dims)).astype(np.float32)
    chosen = index_kind(kind, rows, dims)
    index = new_index(chosen, dims)
    if not index.is_trained:
        index.train(vectors)
    index.add(vectors)
    assert faiss.serialize_index(index).nbytes == pytest.approx(index_bytes(kind, rows, dims), rel=0.02)


@pytest.mark.parametrize(
    ("memory_gb", "kind"), [(64, "flat"), (60, "flat_fp16"), (16, "sq8"), (15, "opq_ivf_pq"), (2.5, "opq_ivf_pq")]
)
def test_auto_takes_the_most_accurate_that_fits_and_says_why(memory_gb, kind):
    name, reason = choose(WIKI18, 768, memory_gb)
    assert name == kind
    assert f"memory_gb={memory_gb:g}" in reason
    if kind == "sq8":
        assert "flat (60.13 GiB), flat_fp16 (30.06 GiB) would be more accurate and not fit" in reason


def test_auto_that_fits_nothing_says_what_each_takes():
    with pytest.raises(IndexKindError, match=r"memory_gb=1 .*flat \(60.13 GiB\).*opq_ivf_pq \(2\.\d+ GiB\)"):
        choose(WIKI18, 768, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "auto"}, "memory_gb"),
        ({"name": "factory"}, "go together"),
        ({"name": "flat", "nprobe": 3}, "no inverted lists"),
        ({"name": "flat", "ef_search": 3}, "no HNSW"),
        ({"name": "opq_ivf_pq"}, "needs 9984 passages, the corpus has 5000"),
        ({"name": "factory", "factory": "IVF8192,Flat"}, "trains 8192 lists and the corpus has 5000 passages"),
    ],
)
def test_a_kind_that_cannot_be_is_refused_in_words(arguments, says):
    with pytest.raises(IndexKindError, match=says):
        index_kind(rows=5000, dims=64, **arguments)


def test_a_factory_string_that_faiss_does_not_know():
    with pytest.raises(IndexKindError, match=r"index\.factory='Flatt'"):
        new_index(index_kind("factory", 100, 8, factory="Flatt"), 8)


def test_the_plan_of_wiki18():
    plan = BuildPlan(WIKI18, True, 768, 650.0, 1000.0)
    assert plan.hours == pytest.approx(5.8376, abs=1e-3)
    assert plan.vectors_bytes("flat") == 64_559_075_328
    assert plan.vectors_bytes("sq8") == 32_279_537_664
    assert plan.memory_bytes("flat") - index_bytes("flat", WIKI18, 768) < 1.5e9
    text = "\n".join(plan.describe("flat", 10 * 2**30))
    for part in ("21015324, 768 dims", "5.84 hours at 1000 passages/s", "will not fit", "flat_fp16 30.06 GiB"):
        assert part in text


def test_the_plan_of_a_small_corpus_has_small_units():
    text = "\n".join(BuildPlan(600, True, 384, 100.0, 100.0).describe("flat", 10 * 2**30))
    for part in ("flat 0.9 MiB", "1.00 GiB to build it", "about 0.1 minutes at 100 passages/s"):
        assert part in text

"""The search tool over a real index (with an encoder that needs no model)."""

from __future__ import annotations

import asyncio
import threading

import pytest

from retrieval_index.retriever import MAX_K, Retriever
from retrieval_index.testing import HashedWordsEncoder
from tools.protocol import Tool, ToolCall
from tools.search import MAX_QUERIES_PER_CALL, SearchTool


async def _one(tool: SearchTool, **arguments):
    (result,) = await tool.run([ToolCall("c", "search", arguments)])
    return result


def test_it_is_a_tool(search_tool):
    assert isinstance(search_tool, Tool)


async def test_documents_are_numbered_lines_and_data_has_ids_and_scores(search_tool):
    result = await _one(search_tool, query="capital of Peru", top_k=2)
    lines = result.text.split("\n")
    assert result.status == "ok"
    assert lines[0] == "Doc 1(Title: Lima) Lima is the capital of Peru."
    assert lines[1].startswith("Doc 2(Title: ")
    (found,) = result.data["results"]
    assert found["hits"][0]["id"] == "lima"
    assert found["hits"][0]["score"] > found["hits"][1]["score"]


async def test_a_poisoned_passage_can_neither_answer_nor_call(search_tool):
    result = await _one(search_tool, query="poison page about toads", top_k=1)
    assert result.data["results"][0]["hits"][0]["id"] == "poison"
    assert "<" not in result.text
    assert "‹/information›" in result.text
    assert "‹ Answer ›" in result.text
    assert result.text.count("\n") == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "query is missing"),
        ({"query": ""}, "query is empty"),
        ({"query": " \n"}, "query is empty"),
        ({"query": 5}, "query must be a string"),
        ({"query": []}, "query: 0 queries"),
        ({"query": ["a"] * (MAX_QUERIES_PER_CALL + 1)}, "17 queries"),
        ({"query": ["ok", ""]}, "query[1] is empty"),
        ({"query": "a", "top_k": 0}, "top_k"),
        ({"query": "a", "top_k": 101}, "1 to 100"),
        ({"query": "a", "top_k": True}, "top_k"),
        ({"query": "a", "top_k": "3"}, "top_k"),
        ({"query": "a" * 2001}, "query has 2001 characters"),
        ({"query": "a", "k": 3}, "unknown argument 'k'"),
        ({"query": "a", "k" * 9999: 3}, f"unknown argument '{'k' * 100}';"),
    ],
)
async def test_bad_arguments_are_invalid_and_named_and_nothing_is_encoded(search_tool, encoder, arguments, says):
    encoder.seen.clear()
    result = await _one(search_tool, **arguments)
    assert result.status == "invalid"
    assert says in result.text
    assert encoder.seen == []


async def test_calls_of_a_batch_are_encoded_together_and_do_not_mix(search_tool, encoder):
    calls = [
        ToolCall("1", "search", {"query": "capital of Peru", "top_k": 1}),
        ToolCall("2", "search", {"query": ""}),
        ToolCall("3", "search", {"query": ["capital of Ecuador", "Lima"], "top_k": 2}),
        ToolCall("4", "search", {"query": "Quito"}),
    ]
    results = await search_tool.run(calls)
    assert [r.id for r in results] == ["1", "2", "3", "4"]
    assert [r.status for r in results] == ["ok", "invalid", "ok", "ok"]
    assert [[len(f["hits"]) for f in r.data.get("results", [])] for r in results] == [[1], [], [2, 2], [3]]
    assert results[2].text.startswith("Query 1: capital of Ecuador\nDoc 1(Title: Quito)")
    assert "\n\nQuery 2: Lima\nDoc 1(Title: Lima)" in results[2].text


async def test_more_than_there_is_gives_all(search_tool, retriever):
    result = await _one(search_tool, query="capital", top_k=100)
    ids = [hit["id"] for hit in result.data["results"][0]["hits"]]
    assert len(ids) == len(set(ids)) == len(retriever)


async def test_a_query_without_a_vector_harms_only_itself(index_folder):
    tool = SearchTool(Retriever.open(index_folder, HashedWordsEncoder(poison="toad")))
    bad, good = await tool.run([ToolCall("1", "search", {"query": "toad"}), ToolCall("2", "search", {"query": "Lima"})])
    assert (bad.status, good.status) == ("error", "ok")
    assert good.data["results"][0]["hits"][0]["id"] == "lima"
    await tool.close()


def test_keys_tell_calls_apart(search_tool):
    def key(**arguments):
        return search_tool.cache_key(ToolCall("x", "search", arguments))

    assert key(query="a") == key(query="a", top_k=3)
    assert len({key(query="a"), key(query="b"), key(query="a", top_k=4), key(query=["a"])}) == 4
    assert key(query="") is None


def test_bounds_that_contradict_are_refused(retriever):
    with pytest.raises(ValueError, match="max_top_k=2"):
        SearchTool(retriever, default_top_k=3, max_top_k=2)
    with pytest.raises(ValueError, match=str(MAX_K)):
        SearchTool(retriever, max_top_k=MAX_K + 1)


async def test_replicas_answer_side_by_side_and_alike(index_folder):
    encoders = [Gate(), Gate()]
    tool = SearchTool(*(Retriever.open(index_folder, encoder) for encoder in encoders), threads=1)
    assert tool.concurrency == tool.summary()["replicas"] == 2
    batches = [[ToolCall("1", "search", {"query": "capital of Peru"})], [ToolCall("2", "search", {"query": "Quito"})]]
    running = asyncio.gather(*(tool.run(batch) for batch in batches))
    # neither is let go before both are at work
    assert await asyncio.to_thread(lambda: all(encoder.entered.wait(10) for encoder in encoders))
    for encoder in encoders:
        encoder.open.set()
    (peru,), (quito,) = await running
    assert [r.data["results"][0]["hits"][0]["id"] for r in (peru, quito)] == ["lima", "quito"]
    await tool.close()


class Gate(HashedWordsEncoder):
    """Encodes once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()

    def encode_queries(self, queries):
        self.entered.set()
        assert self.open.wait(10)
        return super().encode_queries(queries)


async def test_a_failing_search_gives_its_replica_back(index_folder, retriever, encoder):
    tool = SearchTool(retriever)
    encoder.dims = 3  # FAISS refuses such vectors
    with pytest.raises(AssertionError):
        await tool.run([ToolCall("1", "search", {"query": "Lima"})])
    encoder.dims = 64
    (found,) = await asyncio.wait_for(tool.run([ToolCall("2", "search", {"query": "Lima"})]), 10)
    assert found.status == "ok"
    await tool.close()

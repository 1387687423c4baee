"""The search tool: queries in, numbered documents out."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from retrieval_index.retriever import MAX_K, Hit, Retriever
from tools.protocol import InvalidArguments, ToolCall, ToolResult
from tools.tags import neutralise_tags

log = logging.getLogger(__name__)

MAX_QUERIES_PER_CALL = 16


@dataclass(frozen=True, slots=True)
class SearchArguments:
    queries: tuple[str, ...]
    top_k: int


class SearchTool:
    """Searches an index. Calls of a batch are encoded and searched at once, by whichever of ``retrievers`` is free:
    several batches at once keep more cores busy than one batch can.

    ``threads``: of each (None: as torch and FAISS choose). ``default_top_k`` is used where a call names none;
    ``max_top_k`` and ``max_query_chars`` bound what may be asked.
    """

    name = "search"
    description = "Search a collection of passages. Returns the passages nearest in meaning to the query."
    idempotent = True
    max_batch = max_queue = None

    def __init__(
        self,
        *retrievers: Retriever,
        threads: int | None = None,
        default_top_k: int = 3,
        max_top_k: int = 100,
        max_query_chars: int = 2000,
    ) -> None:
        if not 1 <= default_top_k <= max_top_k <= MAX_K:
            raise ValueError(
                f"default_top_k={default_top_k}, max_top_k={max_top_k}: need 1 <= default_top_k <= max_top_k <= {MAX_K}"
            )
        self._retriever = retrievers[0]  # any of them: they search the same index
        self._free: queue.SimpleQueue[Retriever] = queue.SimpleQueue()
        for retriever in retrievers:
            self._free.put(retriever)
        self.concurrency = len(retrievers)
        self._default_top_k, self._max_top_k = default_top_k, max_top_k
        self._max_query_chars = max_query_chars
        self._workers = ThreadPoolExecutor(
            len(retrievers), thread_name_prefix="search", initializer=_keep_to, initargs=(threads,)
        )
        query = {"type": "string", "minLength": 1, "maxLength": max_query_chars}
        self.parameters: dict[str, Any] = {
            "type": "object",
            "properties": {
                "query": {
                    "anyOf": [
                        query,
                        {"type": "array", "items": query, "minItems": 1, "maxItems": MAX_QUERIES_PER_CALL},
                    ],
                    "description": "what to look for, in words; several queries as a list",
                },
                "top_k": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": max_top_k,
                    "default": default_top_k,
                    "description": "passages wanted per query",
                },
            },
            "required": ["query"],
            "additionalProperties": False,
        }

    def parse(self, arguments: dict[str, Any]) -> SearchArguments:
        """Raises InvalidArguments, naming the field."""
        if unknown := sorted(set(arguments) - {"query", "top_k"}):
            raise InvalidArguments(f"unknown argument {unknown[0][:100]!r}; the arguments are query and top_k")
        if "query" not in arguments:
            raise InvalidArguments("query is missing")
        given = arguments["query"]
        queries = given if isinstance(given, list) else [given]
        if not 1 <= len(queries) <= MAX_QUERIES_PER_CALL:
            raise InvalidArguments(f"query: {len(queries)} queries given, 1 to {MAX_QUERIES_PER_CALL} allowed")
        for place, query in enumerate(queries):
            self.check_query(query, f"query[{place}]" if isinstance(given, list) else "query")
        top_k = arguments.get("top_k")
        return SearchArguments(tuple(queries), self._default_top_k if top_k is None else self.check_top_k(top_k))

    def check_query(self, query: Any, field: str) -> None:
        """Raises InvalidArguments where ``query`` is not text, is empty, or is too long."""
        if not isinstance(query, str):
            raise InvalidArguments(f"{field} must be a string")
        if not query.strip():
            raise InvalidArguments(f"{field} is empty")
        if len(query) > self._max_query_chars:
            raise InvalidArguments(f"{field} has {len(query)} characters, at most {self._max_query_chars} allowed")

    def check_top_k(self, top_k: Any, field: str = "top_k") -> int:
        """Raises InvalidArguments unless a whole number from 1 to ``max_top_k``."""
        if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= self._max_top_k:
            raise InvalidArguments(f"{field} must be a whole number from 1 to {self._max_top_k}")
        return top_k

    def cache_key(self, call: ToolCall) -> Hashable | None:
        """Calls of one key have one answer for as long as the index is the same; None: not to be shared."""
        try:
            arguments = self.parse(call.arguments)
        except InvalidArguments:
            return None
        one = isinstance(call.arguments["query"], str)
        return (self._retriever.manifest_sha, arguments.queries, arguments.top_k, one)

    def summary(self) -> dict[str, Any]:
        """What the tool searches, for the health answer."""
        manifest = self._retriever.manifest
        return {
            "kind": manifest.kind,
            "passages": manifest.passages,
            "dims": manifest.dims,
            "corpus": manifest.corpus,
            "corpus_sha256": manifest.corpus_sha256,
            "encoder": manifest.encoder.path if manifest.encoder is not None else None,
            "encoder_computes": self._retriever.computes,
            "mode": self._retriever.mode,
            "replicas": self.concurrency,
            "manifest_sha256": self._retriever.manifest_sha,
        }

    async def run(self, calls: list[ToolCall]) -> list[ToolResult]:
        """Answer each call, in order; a bad call is ``invalid`` and costs its neighbours nothing."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, self._run, calls)

    async def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _run(self, calls: list[ToolCall]) -> list[ToolResult]:
        parsed: list[SearchArguments | str] = []
        for call in calls:
            try:
                parsed.append(self.parse(call.arguments))
            except InvalidArguments as error:
                parsed.append(str(error))
        found = self._search([arguments for arguments in parsed if isinstance(arguments, SearchArguments)])
        results = []
        for call, arguments in zip(calls, parsed, strict=True):
            if isinstance(arguments, str):
                results.append(ToolResult(call.id, "invalid", arguments))
            else:
                results.append(_result(call, [(query, next(found)) for query in arguments.queries]))
        return results

    def _search(self, asked: list[SearchArguments]) -> Any:
        """An iterator over the hits of every query of ``asked``, cut to what each asked for."""
        wanted = [(query, arguments.top_k) for arguments in asked for query in arguments.queries]
        if not wanted:
            return iter(())
        # one search at the largest k: the first k of a longer list are the same passages
        retriever = self._free.get()
        try:
            hits = retriever.search_each([query for query, _ in wanted], max(k for _, k in wanted))
        finally:
            self._free.put(retriever)
        return (None if some is None else some[:k] for some, (_, k) in zip(hits, wanted, strict=True))


def _keep_to(threads: int | None) -> None:
    """The thread that calls this computes with so many: both libraries count by the thread that calls them."""
    if threads is not None:
        import faiss
        import torch

        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(threads)


def _result(call: ToolCall, found: list[tuple[str, list[Hit] | None]]) -> ToolResult:
    for query, hits in found:
        if hits is None:
            # the weights are at fault, not the model, but asking the same again would end the same
            log.error("the encoder gave no finite vector for the query %r", query)
            return ToolResult(call.id, "error", "This query cannot be searched. Try other words.")
    texts = [render(hits or []) for _, hits in found]
    if isinstance(call.arguments["query"], list):
        texts = [
            f"Query {number}: {neutralise_tags(_one_line(query))}\n{text}"
            for number, ((query, _), text) in enumerate(zip(found, texts, strict=True), start=1)
        ]
    data = {
        "results": [
            {
                "query": query,
                "hits": [{"id": h.id, "score": h.score, "title": h.title, "text": h.text} for h in hits or []],
            }
            for query, hits in found
        ]
    }
    return ToolResult(call.id, "ok", "\n\n".join(texts), data)


def render(hits: list[Hit]) -> str:
    """One line per document: ``Doc 1(Title: T) passage``; whatever looks like a tag in it is neutralised."""
    if not hits:
        return "No documents found."
    # neutralised after the lines are put together, so that a tag cannot be split over title and text
    return "\n".join(
        neutralise_tags(f"Doc {number}(Title: {_one_line(hit.title)}) {_one_line(hit.text)}")
        for number, hit in enumerate(hits, start=1)
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())

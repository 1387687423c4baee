"""Starting the tools that a server was asked for."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tools.batcher import HostedTool

if TYPE_CHECKING:
    from retrieval_index.rerank import PairScorer
    from retrieval_index.retriever import Retriever

TOOL_NAMES = ("search", "python", "sql")
# The thread that encodes gives the interpreter to the one that answers after so long, not after the usual 5 ms: every
# answer and every /health would wait for it
SWITCH_S = 0.001


def load_tools(
    names: Sequence[str],
    *,
    index: str,
    search: dict[str, Any],
    python: dict[str, Any],
    sql: dict[str, Any],
) -> list[HostedTool]:
    """The tools ``names``, each with its own settings, ready to be called. What is not asked for is not imported.

    Raises what each raises: RetrievalError, PythonUnavailable, SqlUnavailable; each says what to do.
    """
    starters = {
        "search": lambda: _search(index, **search),
        "python": lambda: _python(**python),
        "sql": lambda: _sql(**sql),
    }
    return [starters[name]() for name in names]


def open_retriever(index: str, *, rerank: str | None = None, **how: Any) -> Retriever:
    """What the search tool searches with. ``rerank``: a cross-encoder; ``how``: the settings of `Retriever.open` (mode,
    mmap, scan, engine, dtype, rerank_depth), which raises.
    """
    from retrieval_index.retriever import Retriever

    return Retriever.open(index, reranker=_scorer(rerank), **how)


def _search(
    index: str,
    *,
    max_top_k: int = 100,
    max_query_chars: int = 2000,
    replicas: int = 1,
    rerank: str | None = None,
    **how: Any,
) -> HostedTool:
    """``replicas`` share the cores; ``rerank`` and ``how``: as for `open_retriever`."""
    from tools.search import SearchTool

    threads = None
    if replicas > 1:
        import torch

        threads = max(1, torch.get_num_threads() // replicas)
        torch.set_num_threads(threads)  # OpenVINO takes this number when it loads the model
    retrievers = [open_retriever(index, rerank=rerank, **how)]
    retrievers += [retrievers[0].replica(_scorer(rerank)) for _ in range(replicas - 1)]
    for retriever in retrievers:
        retriever.search(["warm up", "warm up twice"], 1)  # the first search is slow, nobody should wait for it
    return SearchTool(
        *retrievers,
        threads=threads,
        default_top_k=min(3, max_top_k),
        max_top_k=max_top_k,
        max_query_chars=max_query_chars,
    )


def _scorer(rerank: str | None) -> PairScorer | None:
    if rerank is None:
        return None
    from retrieval_index.rerank import CrossEncoderScorer

    return CrossEncoderScorer(rerank)


def _python(*, engine: str = "local", url: str | None = None, **settings: Any) -> HostedTool:
    if engine == "remote":
        from tools.python.isolation import PythonUnavailable
        from tools.python.remote import RemoteFailed, RemotePythonTool

        if url is None:
            raise PythonUnavailable("python.engine=remote needs python.url=http://... of a SandboxFusion service")
        theirs = {"timeout_s", "memory_mb", "output_bytes", "workers", "max_queue", "max_code_bytes"}
        remote = RemotePythonTool(url, **{key: value for key, value in settings.items() if key in theirs})
        try:
            remote.check()
        except RemoteFailed as error:
            raise PythonUnavailable(str(error)) from error
        return remote
    from tools.python.tool import PythonTool

    return PythonTool.start(**settings)


def _sql(**settings: Any) -> HostedTool:
    from tools.sql.tool import SqlTool

    return SqlTool(**settings)


def loaded_for_good() -> None:
    """What the tools loaded stays. Otherwise each full collection goes through all of an encoder's objects, and for a
    third of a second nobody is answered, every few seconds under load.
    """
    gc.collect()
    gc.freeze()

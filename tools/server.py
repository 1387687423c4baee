"""The tool server as a process: ``python -m tools.server --tools search,python --index indexes/miniwiki``."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.listen import TOKEN_ENV, ServeError, bind, token_for
from tools.load import SWITCH_S, TOOL_NAMES, load_tools, loaded_for_good
from tools.logs import LOG_FORMS, LogForm, process_log

# longer than clients keep idle connections, so that it is never the server that closes one in use
KEEP_ALIVE_S = 75
GRACE_S = 5


def serve(
    tools: Sequence[str] = ("search",),
    *,
    index: str = "indexes/miniwiki",
    host: str = "127.0.0.1",
    port: int = 8900,
    token_file: str | None = None,
    max_body_bytes: int = 4 * 2**20,
    max_batch: int = 64,
    max_queue: int = 1024,
    max_top_k: int = 100,
    max_query_chars: int = 2000,
    cache_entries: int = 10_000,
    mode: str | None = None,
    mmap: bool = False,
    scan: str = "auto",
    engine: str = "torch",
    dtype: str | None = None,
    replicas: int = 1,
    rerank: str | None = None,
    rerank_depth: int = 50,
    python: dict[str, Any] | None = None,
    sql: dict[str, Any] | None = None,
    log: LogForm = "text",
    access_log: bool = False,
    say: Callable[[str], None] | None = None,
) -> None:
    """Serve ``tools`` (of TOOL_NAMES) until SIGTERM or Ctrl-C. One line goes to ``say`` when they are ready.

    ``index`` is the search tool's; ``python`` and ``sql`` are the settings of those two. ``port=0`` takes a
    free one. The server listens at once and answers 503 while the tools load. Raises ServeError (address, port,
    token), or what a tool raises that cannot start (each has an ``exit_code``). With ``log="json"`` stderr has one JSON
    object a line, errors too (they end the process: `process_log`); ``access_log``: a line for each answered request.
    """
    with process_log(log):
        import uvicorn

        from tools.app import create_app
        from tools.host import ServerLimits, ToolHost

        check_tools(tools)
        token = token_for(host, token_file)
        if "search" in tools:
            check_search(index, max_top_k)
        listening = bind(host, port)
        url = url_of(host, listening.getsockname()[1])
        search: dict[str, Any] = {"max_top_k": max_top_k, "max_query_chars": max_query_chars}
        search |= {"mode": mode, "mmap": mmap, "scan": scan, "engine": engine, "dtype": dtype, "replicas": replicas}
        search |= {"rerank": rerank, "rerank_depth": rerank_depth}

        def when_loaded(loaded: ToolHost) -> None:
            if loaded.state == "failed":
                server.should_exit = True
                return
            loaded_for_good()
            line = f"ready: {url}  {description(loaded, index)}"
            (say or _print_line)(line)
            if log == "json":
                logging.getLogger("tools.server").info(line)

        limits = ServerLimits(max_body_bytes, max_batch, max_queue, cache_entries)
        app = create_app(
            lambda: load_tools(tools, index=index, search=search, python=python or {}, sql=sql or {}),
            limits,
            token=token,
            access_log=access_log,
            when_loaded=when_loaded,
        )
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=uvicorn.config.LOGGING_CONFIG if log == "text" else None,
                log_level="warning",
                access_log=False,
                proxy_headers=access_log,  # who else would want to know the client behind a proxy
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        sys.setswitchinterval(SWITCH_S)
        # uvicorn ends on these signals and then raises them again for whoever handled them before; without a
        # handler of ours a clean end would look like a crash
        earlier = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            server.run(sockets=[listening])
        finally:
            listening.close()
            for number, handler in earlier.items():
                signal.signal(number, handler)
        failure = app.state.host.failure
        if failure is not None:
            raise failure


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def check_tools(tools: Sequence[str]) -> None:
    unknown = [name for name in tools if name not in TOOL_NAMES]
    if unknown or not tools or len(set(tools)) < len(tools):
        given = ",".join(tools)
        raise ServeError(f"tools={given}: give one or more of {', '.join(TOOL_NAMES)}, each once")


def check_search(index: str, max_top_k: int) -> None:
    """The commonest mistakes, found before the port is opened."""
    from retrieval_index.index import read_manifest
    from retrieval_index.retriever import MAX_K

    if max_top_k > MAX_K:
        raise ServeError(f"max_top_k={max_top_k} is above {MAX_K}, which is all that an index can give")
    read_manifest(Path(index))


def description(loaded: Any, index: str) -> str:
    """Of what a ToolHost has loaded, for the ready line."""
    parts = ["tools: " + ", ".join(tool.name for tool in loaded.tools)]
    for tool in loaded.tools:
        summary = tool.summary()
        match tool.name:
            case "search":
                computes = f"; encoder: {summary['encoder_computes']}" if summary["encoder_computes"] else ""
                parts.append(f"index: {index} ({summary['passages']} passages{computes})")
            case "python":
                parts.append(f"python: {_isolation(summary)}")
            case "sql":
                parts.append(f"databases: {', '.join(summary['databases'])}")
    return "  ".join(parts)


def _isolation(summary: dict[str, Any]) -> str:
    """The isolation, and why it is not a stronger one: nothing falls back in silence."""
    if summary["isolation"] == "none":
        return "NOT ISOLATED (allow_unsafe): the model's code runs as you"
    refused = "".join(f"; {name} is not to be had: {reason}" for name, reason in summary.get("refused", {}).items())
    return f"isolated by {summary['isolation']}{refused}"


def _ignore(*_: object) -> None:
    """Handler of a signal that was dealt with already."""


def _print_line(line: str) -> None:
    print(line, flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _record(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is needed")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.server", description="Serve tools over HTTP.")
    parser.add_argument(
        "--tools",
        type=lambda text: text.split(","),
        default=["search"],
        help=f"one or more of {','.join(TOOL_NAMES)}, with commas",
    )
    parser.add_argument("--index", default="indexes/miniwiki", help="index folder, made by agent-rl build-index")
    parser.add_argument("--host", default="127.0.0.1", help="another address than loopback needs a token")
    parser.add_argument(
        "--port", type=int, choices=range(65536), metavar="PORT", default=8900, help="0 takes a free port"
    )
    parser.add_argument("--token-file", help=f"file with the bearer token (or set {TOKEN_ENV})")
    parser.add_argument("--max-body-bytes", type=_positive, default=4 * 2**20)
    parser.add_argument("--max-batch", type=_positive, default=64, help="searches that run together")
    parser.add_argument("--max-queue", type=_positive, default=1024, help="calls that may wait, for each tool")
    parser.add_argument("--max-top-k", type=_positive, default=100)
    parser.add_argument("--max-query-chars", type=_positive, default=2000)
    parser.add_argument("--cache-entries", type=int, default=10_000, help="answers kept; 0 keeps none")
    parser.add_argument("--mode", choices=["dense", "bm25", "hybrid"], help="by default what the index has")
    parser.add_argument("--mmap", action="store_true", help="leave the vectors on disk")
    parser.add_argument("--scan", choices=["auto", "faiss", "bfloat16"], default="auto", help="of a flat index")
    parser.add_argument(
        "--engine",
        choices=["torch", "onnx", "openvino", "openvino_int8"],
        default="torch",
        help="what runs the encoder, for queries",
    )
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], help="of the encoder, for queries")
    parser.add_argument("--replicas", type=_positive, default=1, help="encoders side by side, sharing the cores")
    parser.add_argument("--rerank", help="a cross-encoder (folder or hub id) that orders the first hits anew")
    parser.add_argument("--rerank-depth", type=_positive, default=50)
    parser.add_argument("--python", type=_record, help="settings of the python tool: '{\"timeout_s\": 5}'")
    parser.add_argument("--sql", type=_record, help='settings of the sql tool: \'{"databases": {"main": "x.db"}}\'')
    parser.add_argument("--log", choices=LOG_FORMS, default="text", help="json: stderr has one JSON object a line")
    parser.add_argument("--access-log", action="store_true", help="log one line for each answered request")
    options = vars(parser.parse_args(arguments))
    try:
        serve(options.pop("tools"), **options)
    except Exception as error:
        if (code := getattr(error, "exit_code", None)) is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())

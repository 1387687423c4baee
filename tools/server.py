"""The tool server as a process: ``python -m tools.server --index indexes/miniwiki``."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

TOKEN_ENV = "AGENT_RL_TOOL_TOKEN"
BACKLOG = 2048
# longer than clients keep idle connections, so that it is never the server that closes one in use
KEEP_ALIVE_S = 75
GRACE_S = 5


class ServeError(Exception):
    """The server cannot start as asked; the text says what to do."""

    exit_code = 2


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(token_file: str | None) -> str | None:
    """The bearer token: the file's content, else ``$AGENT_RL_TOOL_TOKEN``, else None. Raises ServeError."""
    if token_file is None:
        token = os.environ.get(TOKEN_ENV, "").strip()
        return _fit_for_a_header(token, TOKEN_ENV) if token else None
    try:
        token = Path(token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"token_file={token_file!r} cannot be read: {error}") from None
    if not token:
        raise ServeError(f"token_file={token_file!r} is empty; write a long random word into it")
    return _fit_for_a_header(token, f"token_file={token_file!r}")


def _fit_for_a_header(token: str, source: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise ServeError(f"{source} holds no token: one line of plain ASCII letters and digits is needed")
    return token


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that listens. Raises ServeError where the port is in use or the address is not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServeError(f"host={host!r}: {error.strerror or error}") from None
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise ServeError(
            f"cannot listen on {host}:{port} ({error.strerror}); is another server running there? Use another port"
        ) from None
    return opened


def serve(
    index: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8900,
    token_file: str | None = None,
    max_body_bytes: int = 4 * 2**20,
    max_batch: int = 64,
    max_queue: int = 1024,
    max_top_k: int = 100,
    max_query_chars: int = 2000,
    cache_entries: int = 10_000,
    say: Callable[[str], None] | None = None,
) -> None:
    """Serve the search tool over ``index`` until SIGTERM or Ctrl-C. One line goes to ``say`` when it is
    ready.

    ``port=0`` takes a free one. The server listens at once and answers 503 while the index loads.
    Raises ServeError (address, port, token) or a RetrievalError (index, encoder).
    """
    import uvicorn

    from retrieval_index.index import read_manifest
    from retrieval_index.retriever import MAX_K, Retriever
    from tools.app import create_app
    from tools.host import ServerLimits, ToolHost
    from tools.search import SearchTool

    if max_top_k > MAX_K:
        raise ServeError(f"max_top_k={max_top_k} is above {MAX_K}, which is all that an index can give")
    token = read_token(token_file)
    if token is None and not is_loopback(host):
        raise ServeError(
            f"host={host!r} can be reached from other machines, and a bearer token is needed for that: "
            f"give a file that holds one as token_file (--token-file), or set {TOKEN_ENV}"
        )
    read_manifest(Path(index))  # the commonest mistake, found before the port is opened
    listening = bind(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"

    def load() -> Sequence[SearchTool]:
        retriever = Retriever.open(index)
        tool = SearchTool(
            retriever,
            default_top_k=min(3, max_top_k),
            max_top_k=max_top_k,
            max_query_chars=max_query_chars,
        )
        retriever.search(["warm up"], 1)  # the first search of a process is slow, nobody should wait for it
        return [tool]

    def when_loaded(host_of_tools: ToolHost) -> None:
        if host_of_tools.state == "failed":
            server.should_exit = True
            return
        tools = ", ".join(tool.name for tool in host_of_tools.tools)
        summary = host_of_tools.tools[0].summary()
        line = f"ready: {url}  tools: {tools}  index: {index} ({summary['passages']} passages)"
        (say or _print_line)(line)

    limits = ServerLimits(max_body_bytes, max_batch, max_queue, cache_entries)
    app = create_app(load, limits, token=token, when_loaded=when_loaded)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
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


def _ignore(*_: object) -> None:
    """Handler of a signal that was dealt with already."""


def _print_line(line: str) -> None:
    print(line, flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.server", description="Serve tools over HTTP.")
    parser.add_argument("--index", required=True, help="index folder, made by agent-rl build-index")
    parser.add_argument("--host", default="127.0.0.1", help="another address than loopback needs a token")
    parser.add_argument(
        "--port", type=int, choices=range(65536), metavar="PORT", default=8900, help="0 takes a free port"
    )
    parser.add_argument("--token-file", help=f"file with the bearer token (or set {TOKEN_ENV})")
    parser.add_argument("--max-body-bytes", type=_positive, default=4 * 2**20)
    parser.add_argument("--max-batch", type=_positive, default=64, help="calls that run together")
    parser.add_argument("--max-queue", type=_positive, default=1024, help="calls that may wait, for each tool")
    parser.add_argument("--max-top-k", type=_positive, default=100)
    parser.add_argument("--max-query-chars", type=_positive, default=2000)
    parser.add_argument("--cache-entries", type=int, default=10_000, help="answers kept; 0 keeps none")
    options = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        serve(**options)
    except Exception as error:
        if (code := getattr(error, "exit_code", None)) is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())

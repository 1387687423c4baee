"""What a server needs before it listens: its address, and the token that an open one must have."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

TOKEN_ENV = "AGENT_RL_TOOL_TOKEN"
BACKLOG = 2048


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


def token_for(host: str, token_file: str | None) -> str | None:
    """What `read_token` gives; an address that other machines reach must have one. Raises ServeError."""
    token = read_token(token_file)
    if token is None and not is_loopback(host):
        raise ServeError(
            f"host={host!r} can be reached from other machines, and a bearer token is needed for that: "
            f"give a file that holds one as token_file (--token-file), or set {TOKEN_ENV}"
        )
    return token


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

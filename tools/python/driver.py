"""Runs the code, inside the sandbox. Nothing here is trusted by the server: code may change all of it.

A call comes as a message, ``go`` and a word of its own, with two files, the code and its stdin. It is answered by that
word, and ``ok`` or ``error`` and the exception's name. Everything else that a caller sees is what was printed.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import linecache
import os
import signal
import socket
import sys
import textwrap
import traceback
import types

GO = b"go "


def serve(control: socket.socket, output: int) -> None:
    """Answer calls until the server closes the connection; then end the process."""
    cell = 0
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.path.append("")  # last: a file that the code writes under a library's name hides nothing
    sys.argv = [""]
    while True:
        message, files, _, _ = socket.recv_fds(control, 64, 2)
        if not message.startswith(GO) or len(files) != 2:
            os._exit(0)
        cell += 1
        code, given = files
        with open(code, encoding="utf-8") as file:
            source = file.read()
        _connect(given, output)
        answer = _run(source, f"<cell {cell}>", module.__dict__)
        _end_what_it_started()
        control.send(message.removeprefix(GO) + answer)


def _connect(given: int, output: int) -> None:
    """Fresh standard streams on the right files, whatever the last call did to them."""
    os.dup2(given, 0)
    os.close(given)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="replace")
    sys.stdout = _writer(1)
    sys.stderr = _writer(2)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _writer(fd: int) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    # by the line: what was printed before a limit ends the process is not lost with its buffer
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _run(source: str, name: str, namespace: dict[str, object]) -> bytes:
    try:
        try:
            source = _left_aligned(source)
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            body, last = _compile(source, name)
            exec(body, namespace)
            if last is not None:
                value = eval(last, namespace)
                if value is not None:
                    print(repr(value))
            return b" ok"
        except SystemExit as ending:
            if ending.code is None or ending.code == 0:
                return b" ok"
            print(f"SystemExit: {ending.code}", file=sys.stderr)
            return b" error SystemExit"
        except BaseException as error:
            _print_error(error)
            return b" error " + type(error).__name__.encode("utf-8", "replace")[:80]
        finally:
            _flush(sys.stdout)
            _flush(sys.stderr)
    except BaseException as error:  # hostile __repr__, __str__ or streams: the call ends all the same
        return b" error " + type(error).__name__.encode("utf-8", "replace")[:80]


def _left_aligned(source: str) -> str:
    first = next((line for line in source.splitlines() if line.strip()), "")
    return textwrap.dedent(source) if first[:1].isspace() else source


def _compile(source: str, name: str) -> tuple[types.CodeType, types.CodeType | None]:
    """The statements, and the last expression, whose value is shown (unless a semicolon ends it)."""
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        return compile(tree, name, "exec"), None
    tree.body.pop()
    return compile(tree, name, "exec"), compile(ast.Expression(last.value), name, "eval")


def _print_error(error: BaseException) -> None:
    where = error.__traceback__
    while where is not None and not where.tb_frame.f_code.co_filename.startswith("<cell "):
        where = where.tb_next  # this file's own frames
    sys.stderr.write("".join(traceback.format_exception(type(error), error, where)))


def _flush(stream: object) -> None:
    with contextlib.suppress(BaseException):  # the code closed it, or put something of its own there
        stream.flush()  # type: ignore[attr-defined]


_kill, _waitpid, _KILL = os.kill, os.waitpid, signal.SIGKILL


def _end_what_it_started() -> None:
    """End the processes that the call left. Only for init of a pid namespace: elsewhere nothing can be started."""
    if os.getpid() != 1:
        return
    try:
        _kill(-1, _KILL)
    except OSError:  # there are none
        return
    try:
        while _waitpid(-1, 0):
            pass
    except ChildProcessError:
        pass

"""What the tool server's process writes to stderr: text, or one JSON object a line."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any, Literal

LogForm = Literal["text", "json"]
LOG_FORMS: tuple[LogForm, ...] = ("text", "json")


@contextlib.contextmanager
def process_log(form: LogForm) -> Iterator[None]:
    """Sets up logging, to the end of the process. With ``json`` nothing gets to stderr in another form: an exception
    that leaves the block is logged, and the process ends with its ``exit_code`` (SystemExit).
    """
    logging.getLogger("tools").setLevel(logging.INFO)
    if form == "text":
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        yield
        return
    logging.basicConfig(level=logging.WARNING, handlers=[_json_lines()], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda seen: _log_uncaught(seen.exc_type, seen.exc_value, seen.exc_traceback)
    sys.stderr = _LoggedLines()
    try:
        yield
    except Exception as error:
        code = getattr(error, "exit_code", None)
        logging.getLogger("tools.server").critical("%s", error, exc_info=error if code is None else None)
        raise SystemExit(1 if code is None else code) from None


def _json_lines() -> logging.Handler:
    from pythonjsonlogger.core import RESERVED_ATTRS
    from pythonjsonlogger.json import JsonFormatter

    handler = _Handler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(
            ["levelname", "name", "message"],
            timestamp="time",
            rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception", "stack_info": "stack"},
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's, for terminals
        )
    )
    return handler


class _Handler(logging.StreamHandler[Any]):
    def handleError(self, record: logging.LogRecord) -> None:
        """Logs that a line could not be formatted. The usual way prints it to ``sys.stderr``, which is `_LoggedLines`:
        it would come back here, for ever.
        """
        text = f"a log line that cannot be formatted: {record.msg!r}"
        told = logging.LogRecord(record.name, record.levelno, record.pathname, 0, "%s", (text,), sys.exc_info())
        with contextlib.suppress(Exception):  # stderr is closed: there is nowhere left to tell it
            self.stream.write(self.format(told) + self.terminator)


class _LoggedLines(io.TextIOBase):
    """Stands for ``sys.stderr``: libraries print there, or bring log handlers of their own."""

    def __init__(self) -> None:
        self._begun = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text.replace("\r", "\n")).split("\n")
        for line in lines:
            if line.strip():
                logging.getLogger("stderr").warning("%s", line)
        return len(text)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
    told = (kind, error or kind(), trace)
    logging.getLogger("tools.server").critical("uncaught %s", kind.__name__, exc_info=told)

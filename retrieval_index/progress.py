"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

PLAIN_LINE_EVERY_S = 10.0


class Progress:
    """Shows how much is done, the rate and the time left.

    ``total`` and the steps of :meth:`advance` are in ``unit`` ("passages", "B"); ``done`` is where work
    starts, for resumed work. ``enabled=False`` shows nothing.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        unit: str,
        *,
        done: int = 0,
        enabled: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        self._label, self._total, self._unit, self._enabled = label, total, unit, enabled
        self._stream = sys.stderr if stream is None else stream
        self._start_done = self._done = done
        self._started = self._last_line = time.monotonic()
        self._shown = done
        self._bar = None
        if enabled and self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                initial=done,
                desc=label,
                unit=unit if unit == "B" else f" {unit}",
                unit_scale=unit == "B",
                unit_divisor=1024,
                file=self._stream,
                dynamic_ncols=True,
            )

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif self._enabled and time.monotonic() - self._last_line >= PLAIN_LINE_EVERY_S:
            self._line()

    def _line(self) -> None:
        now = self._last_line = time.monotonic()
        self._shown = self._done
        rate = (self._done - self._start_done) / max(now - self._started, 1e-9)
        if self._unit == "B":
            done, total, speed = (
                f"{self._done / 2**20:.1f}",
                self._total and f"{self._total / 2**20:.1f}",
                (f"{rate / 2**20:.1f} MiB/s"),
            )
            unit = "MiB"
        else:
            done, total, speed = (
                str(self._done),
                self._total and str(self._total),
                f"{rate:.0f} {self._unit}/s",
            )
            unit = self._unit
        left = f", {(self._total - self._done) / rate:.0f} s left" if self._total and rate else ""
        of = f"/{total}" if total else ""
        print(f"{self._label}: {done}{of} {unit} ({speed}{left})", file=self._stream, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._enabled and self._done > self._shown:
            self._line()

"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PLAIN_EVERY_S = 15.0


@contextmanager
def progress(label: str, total: int, unit: str, log: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Yields a function to call once for each unit done."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, desc=label, unit=unit, leave=False, dynamic_ncols=True) as bar:
            yield lambda: bar.update() and None
        return
    began = last = time.perf_counter()
    done = 0

    def advance() -> None:
        nonlocal done, last
        done += 1
        now = time.perf_counter()
        if now - last >= PLAIN_EVERY_S and done < total:
            last = now
            rate = done / (now - began)
            # Many are in flight together, so the first to finish say little about the rest.
            left = f", {(total - done) / rate:.0f} s left" if done * 5 >= total else ""
            log(f"{label}: {done}/{total} {unit}, {rate:.1f} {unit}/s{left}")

    yield advance

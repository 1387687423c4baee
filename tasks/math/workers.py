"""Processes that compare answers, each comparison with a deadline.

pebble kills the process of a comparison that is late and starts another, so that ``9^{9^{9^9}}`` costs one deadline,
in whichever thread it was asked. The deadline counts from when a worker takes the comparison, so waiting in line
costs nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import weakref
from concurrent.futures import Future
from typing import Any

MEMORY_BYTES = 4 * 2**30  # of address space: a worker that wants more gets a MemoryError
# Later than the deadline, which pebble keeps: this one ends a worker whose parent was killed meanwhile.
_ORPHAN_GRACE_S = 10.0


class Workers:
    """A pool of ``count`` processes (0: one a processor), started at the first comparison and ended with this object.

    A script that uses it needs ``if __name__ == "__main__":`` around its own work, as for every spawned process.
    """

    def __init__(self, count: int, deadline_s: float) -> None:
        self._count = count or os.cpu_count() or 1
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._pool: Any = None

    def submit(self, gold: str, answer: str, tolerance: float | None) -> Future[bool]:
        """Compare by value. The future raises TimeoutError where that took too long, else what the worker raised."""
        arguments = (gold, answer, tolerance, self._deadline_s)
        submitted: Future[bool] = self._running().schedule(_compare, args=arguments, timeout=self._deadline_s)
        return submitted

    def _running(self) -> Any:
        from pebble import ProcessPool

        with self._lock:
            if self._pool is None or not self._pool.active:
                # Spawned, not forked: the parent has threads and a model in memory.
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPool(self._count, initializer=_begin, context=context)
                weakref.finalize(self, _end, self._pool)
            return self._pool

    def __reduce__(self) -> tuple[type[Workers], tuple[int, float]]:
        return Workers, (self._count, self._deadline_s)  # a pool of its own wherever it is unpickled


def _end(pool: Any) -> None:
    pool.stop()
    pool.join()


def _begin() -> None:
    """In a worker, before its first comparison: so that imports count towards no deadline."""
    import resource

    from tasks.math.symbolic import prepare

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    prepare()


def _compare(gold: str, answer: str, tolerance: float | None, deadline_s: float) -> bool:
    from tasks.math.symbolic import equal_values

    # The default action of SIGALRM ends the process even inside a long computation in C.
    signal.setitimer(signal.ITIMER_REAL, deadline_s + _ORPHAN_GRACE_S)
    try:
        return equal_values(gold, answer, tolerance)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

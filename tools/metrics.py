"""What the tool server counts, in Prometheus' words. One registry per server, so that two can live in a
process.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tools.batcher import Batcher
from tools.protocol import ToolResult

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counts answers by tool and status, batches by size, and seconds spent waiting and running."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter("tool_calls", "Answered calls", ["tool", "status", "cached"], registry=self._registry)
        self._refused = Counter("tool_calls_refused", "Calls refused: queue full", ["tool"], registry=self._registry)
        self._waiting = Gauge("tool_queue_waiting", "Calls in the queue", ["tool"], registry=self._registry)
        self._queued = Histogram(
            "tool_queued_seconds",
            "Time a call waited before it ran",
            ["tool"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._run = Histogram(
            "tool_batch_run_seconds", "Time a batch ran", ["tool"], buckets=SECONDS, registry=self._registry
        )
        self._size = Histogram(
            "tool_batch_size", "Calls that ran together", ["tool"], buckets=SIZES, registry=self._registry
        )

    def batch(self, tool: str, size: int, run_s: float) -> None:
        self._size.labels(tool).observe(size)
        self._run.labels(tool).observe(run_s)

    def answered(self, tool: str, result: ToolResult, *, cached: bool) -> None:
        self._answers.labels(tool, result.status, str(cached).lower()).inc()
        if not cached:
            self._queued.labels(tool).observe(result.queued_s)

    def refused(self, tool: str, calls: int) -> None:
        self._refused.labels(tool).inc(calls)

    def watch(self, batcher: Batcher) -> None:
        """Report the length of this queue at every scrape."""
        self._waiting.labels(batcher.tool.name).set_function(lambda: batcher.waiting)

    def text(self) -> bytes:
        return generate_latest(self._registry)

"""Putting calls that wait at the same time into one batch.

A dispatcher hands over whatever is waiting as soon as the tool is idle; there is no timer, so a lone call
never waits for company. Under load batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol

from tools.protocol import Tool, ToolCall, ToolResult

log = logging.getLogger(__name__)

# A request with more calls than this share of a batch is a large one
LARGE = 0.25


class HostedTool(Tool, Protocol):
    """What the server needs of a tool beside running it.

    ``concurrency`` batches of at most ``max_batch`` calls run at once, and ``max_queue`` calls may wait (None: the
    server's own bounds). ``idempotent``: a call may be sent again when nobody knows whether it ran.
    """

    @property
    def idempotent(self) -> bool: ...

    @property
    def concurrency(self) -> int: ...

    @property
    def max_batch(self) -> int | None: ...

    @property
    def max_queue(self) -> int | None: ...

    def cache_key(self, call: ToolCall) -> Hashable | None:
        """Calls of the same key have the same answer; None where a call must run by itself."""
        ...

    def summary(self) -> dict[str, Any]: ...

    async def close(self) -> None: ...


class QueueFull(Exception):
    """The queue has no room for these calls. ``retry_after_s`` estimates when it will have."""

    def __init__(self, tool: str, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{tool}: {waiting} calls are waiting, the queue is full")
        self.retry_after_s = retry_after_s


class ToolFailed(Exception):
    """The tool itself raised: a bug or a broken machine, no fault of the call."""


class BatchObserver(Protocol):
    """Is told what happens, for the metrics."""

    def batch(self, tool: str, size: int, run_s: float) -> None: ...

    def answered(self, tool: str, result: ToolResult, *, cached: bool) -> None: ...


@dataclasses.dataclass(slots=True, eq=False)
class _Job:
    """One piece of work; several identical calls may wait for it."""

    call: ToolCall
    key: Hashable | None
    state: Literal["waiting", "running", "dropped"] = "waiting"
    bulk: bool = False  # its only place is among a large request's
    batch: asyncio.Task[None] | None = None  # what runs it
    waiters: list[_Waiter] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, eq=False)
class _Waiter:
    call: ToolCall
    submitted: float
    expires: float
    answer: asyncio.Future[ToolResult]

    def settle(self, result: ToolResult) -> None:
        if not self.answer.done():
            self.answer.set_result(result)


class Batcher:
    """The queue in front of one tool. Belongs to one event loop.

    ``max_batch`` calls run together, ``tool.concurrency`` such batches at once; at most ``max_queue`` wait;
    ``cache_entries`` answers are kept (0: none). Requests take turns: each batch is filled round-robin over the
    requests that wait. Large requests and small ones have batches of their own, by turns, so that a single call waits
    for one part of somebody's bulk and is not answered only when 63 others of it are. A small request for what waits in
    a large one already gives it a second place, among the small.
    """

    def __init__(
        self,
        tool: HostedTool,
        *,
        max_batch: int,
        max_queue: int,
        cache_entries: int,
        observer: BatchObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tool = tool
        self._max_batch, self._max_queue, self._cache_entries = max_batch, max_queue, cache_entries
        self._observer, self._clock = observer, clock
        # small requests, large ones
        self._queues: tuple[deque[deque[_Job]], deque[deque[_Job]]] = (deque(), deque())
        self._turn = 0
        self._shared: dict[Hashable, _Job] = {}  # waiting or running, by key
        self._cache: OrderedDict[Hashable, ToolResult] = OrderedDict()
        self._running: dict[asyncio.Task[None], list[_Job]] = {}
        self._lanes = asyncio.Semaphore(tool.concurrency)
        self._waiting = 0
        self._batch_s = 0.05  # moving average of a batch's run time, for Retry-After
        self._work = asyncio.Event()
        self._dispatcher: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Jobs in the queue, not counting those that run."""
        return self._waiting

    def start(self) -> None:
        self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())

    async def stop(self) -> None:
        """Stop dispatching; calls without an answer yet get ``overloaded``, so that they are made again."""
        if self._dispatcher is not None:
            self._dispatcher.cancel()
            await asyncio.gather(self._dispatcher, return_exceptions=True)
        queued = [job for queue in self._queues for request in queue for job in request]
        for job in queued + [job for batch in self._running.values() for job in batch]:
            for waiter in job.waiters:
                waiter.settle(self._not_started(waiter, "the server is stopping"))
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for queue in self._queues:
            queue.clear()
        self._shared.clear()
        self._waiting = 0

    async def submit(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Answer the calls of one request, in order. Raises QueueFull at once, with none of them queued.

        Cancelling this coroutine drops whatever of it has not started. Raises ToolFailed where the tool itself raised.
        """
        now = self._clock()
        request: deque[_Job] = deque()
        answers: list[ToolResult | _Waiter] = []
        joined: list[tuple[_Job, _Waiter]] = []
        fresh: dict[Hashable, _Job] = {}
        for call in calls:
            key = self.tool.cache_key(call)
            if key is not None and key in self._cache:
                self._cache.move_to_end(key)
                answers.append(dataclasses.replace(self._cache[key], id=call.id, elapsed_s=0.0, queued_s=0.0))
                continue
            job = None if key is None else self._shared.get(key) or fresh.get(key)
            if job is None:
                job = _Job(call, key)
                request.append(job)
                if key is not None:
                    fresh[key] = job
            expires = float("inf") if call.deadline_s is None else now + call.deadline_s
            waiter = _Waiter(call, now, expires, asyncio.get_running_loop().create_future())
            joined.append((job, waiter))
            answers.append(waiter)
        if self._waiting + len(request) > self._max_queue:
            batches = -(-self._waiting // self._max_batch)
            raise QueueFull(self.tool.name, self._waiting, max(0.05, batches * self._batch_s))
        for job, waiter in joined:
            job.waiters.append(waiter)
        self._shared |= fresh
        self._waiting += len(request)
        large = len(joined) > self._max_batch * LARGE
        if not large:
            request.extend(dict.fromkeys(job for job, _ in joined if job.bulk and job.state == "waiting"))
        if request:
            for job in request:
                job.bulk = large
            self._queues[large].append(request)
            self._work.set()
        try:
            if len(joined) == 1:
                await joined[0][1].answer
            else:
                await asyncio.gather(*(waiter.answer for _, waiter in joined))
        except BaseException:
            for job, waiter in joined:
                job.waiters.remove(waiter)
                waiter.answer.cancel()
                if not job.waiters and job.state == "waiting":
                    self._drop(job)
                elif not job.waiters and job.batch is not None and self._max_batch == 1:
                    self._forget([job])  # it runs by itself, for nobody: nobody is to join it now
                    job.batch.cancel()
            raise
        results = [answer.answer.result() if isinstance(answer, _Waiter) else answer for answer in answers]
        if self._observer is not None:
            for answer, result in zip(answers, results, strict=True):
                self._observer.answered(self.tool.name, result, cached=isinstance(answer, ToolResult))
        return results

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            await self._lanes.acquire()  # before the batch is chosen: what comes meanwhile joins it
            if batch := self._next_batch():
                task = loop.create_task(self._run(batch))
                self._running[task] = batch
                for job in batch:
                    job.batch = task
                task.add_done_callback(self._ended)
            else:
                self._lanes.release()
            if not any(self._queues):
                self._work.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._forget(self._running.pop(task))
        self._lanes.release()

    def _next_batch(self) -> list[_Job]:
        """The next jobs to run, one from each waiting request in turn; of small requests, or of large ones."""
        now = self._clock()
        batch: list[_Job] = []
        served = self._turn if self._queues[self._turn] else 1 - self._turn
        requests, self._turn = self._queues[served], 1 - served
        while requests and len(batch) < self._max_batch:
            request = requests.popleft()
            job = request.popleft()
            if request:
                requests.append(request)
            if job.state != "waiting":  # nobody wants it any more, or it ran from its other place
                continue
            for waiter in [waiter for waiter in job.waiters if waiter.expires <= now]:
                waiter.settle(self._not_started(waiter, "the deadline passed in the queue"))
            if all(waiter.answer.done() for waiter in job.waiters):
                self._drop(job)
            else:
                job.state = "running"
                self._waiting -= 1
                batch.append(job)
        return batch

    def _drop(self, job: _Job) -> None:
        """Take a job that nobody waits for any more out of the count at once; its place in the queue is
        skipped.
        """
        job.state = "dropped"
        self._waiting -= 1
        self._forget([job])

    async def _run(self, batch: list[_Job]) -> None:
        started = self._clock()
        try:
            results = await self.tool.run([job.call for job in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{self.tool.name} gave {len(results)} results for {len(batch)} calls")
        except Exception as error:
            log.error("%s failed on a batch of %d calls", self.tool.name, len(batch), exc_info=error)
            self._forget(batch)
            for job in batch:
                for waiter in job.waiters:
                    if not waiter.answer.done():
                        waiter.answer.set_exception(ToolFailed(f"{self.tool.name}: {type(error).__name__}"))
            return
        now = self._clock()
        run_s = now - started
        self._batch_s += 0.2 * (run_s - self._batch_s)
        self._forget(batch)
        for job, result in zip(batch, results, strict=True):
            if job.key is not None and result.status == "ok":
                self._remember(job.key, result)
            # a tool may know better than we how long the call itself ran (a session's calls wait for each other)
            elapsed_s = result.elapsed_s or run_s
            for waiter in job.waiters:
                # one that joined while the job ran did not wait at all; waiting is never counted as run time
                queued_s = max(0.0, now - elapsed_s - waiter.submitted)
                waiter.settle(dataclasses.replace(result, id=waiter.call.id, elapsed_s=elapsed_s, queued_s=queued_s))
        if self._observer is not None:
            self._observer.batch(self.tool.name, len(batch), run_s)

    def _forget(self, batch: list[_Job]) -> None:
        for job in batch:
            if job.key is not None:
                self._shared.pop(job.key, None)

    def _remember(self, key: Hashable, result: ToolResult) -> None:
        if not self._cache_entries:
            return
        self._cache[key] = result
        if len(self._cache) > self._cache_entries:
            self._cache.popitem(last=False)

    def _not_started(self, waiter: _Waiter, why: str) -> ToolResult:
        return ToolResult(
            waiter.call.id, "overloaded", f"not started: {why}", queued_s=self._clock() - waiter.submitted
        )

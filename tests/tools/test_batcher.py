"""The queue in front of a tool."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.batcher import Batcher, QueueFull, ToolFailed
from tools.protocol import ToolCall
from tools.testing import EchoTool


def _call(text: str, identity: str = "c", deadline_s: float | None = None) -> ToolCall:
    return ToolCall(identity, "echo", {"text": text}, deadline_s=deadline_s)


def _batcher(tool: EchoTool, **changes) -> Batcher:
    batcher = Batcher(tool, **{"max_batch": 8, "max_queue": 100, "cache_entries": 100} | changes)
    batcher.start()
    return batcher


async def _until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for is inside the batcher
            await asyncio.sleep(0.001)


async def test_a_lone_call_runs_at_once_and_what_waits_then_runs_together():
    tool = EchoTool()
    batcher = _batcher(tool)
    tool.gate.clear()
    first = asyncio.create_task(batcher.submit([_call("0")]))
    await _until(lambda: tool.batches)
    rest = [asyncio.create_task(batcher.submit([_call(str(n))])) for n in range(1, 12)]
    await _until(lambda: batcher.waiting == 11)
    tool.gate.set()
    results = [(await task)[0].text for task in [first, *rest]]
    assert results == [f"echo {n}" for n in range(12)]
    assert [len(batch) for batch in tool.batches] == [1, 8, 3]
    await batcher.stop()


async def test_a_single_call_does_not_stand_behind_a_bulk():
    tool = EchoTool()
    batcher = _batcher(tool)
    tool.gate.clear()
    bulk = asyncio.create_task(batcher.submit([_call(f"bulk{n}") for n in range(50)]))
    await _until(lambda: tool.batches)
    single = asyncio.create_task(batcher.submit([_call("single")]))
    await _until(lambda: batcher.waiting == 43)
    tool.gate.set()
    await single
    # alone: not answered only when seven others of the bulk are
    assert [call.arguments["text"] for call in tool.batches[1]] == ["single"]
    assert [r.text for r in await bulk] == [f"echo bulk{n}" for n in range(50)]
    await batcher.stop()


async def test_a_single_call_for_what_stands_in_a_bulk_does_not_wait_for_its_place_there():
    tool = EchoTool(shared=True)
    batcher = _batcher(tool)
    tool.gate.clear()
    bulk = asyncio.create_task(batcher.submit([_call(f"bulk{n}") for n in range(50)]))
    await _until(lambda: tool.batches)
    singles = [asyncio.create_task(batcher.submit([_call("bulk49", name)])) for name in ("first", "second")]
    await asyncio.sleep(0.01)
    assert batcher.waiting == 42  # it is the same work
    tool.gate.set()
    assert [(await single)[0].id for single in singles] == ["first", "second"]
    assert [call.arguments["text"] for call in tool.batches[1]] == ["bulk49"]
    assert [r.text for r in await bulk] == [f"echo bulk{n}" for n in range(50)]
    ran = [call.arguments["text"] for batch in tool.batches for call in batch]
    assert sorted(ran) == sorted(f"bulk{n}" for n in range(50))
    assert batcher.waiting == 0
    await batcher.stop()


async def test_bulk_and_singles_take_turns_and_neither_starves():
    tool = EchoTool()
    batcher = _batcher(tool)
    tool.gate.clear()
    first = asyncio.create_task(batcher.submit([_call("first")]))
    await _until(lambda: tool.batches)
    requests = [[_call("bulk") for _ in range(16)], *([_call("single")] for _ in range(16))]
    waiting = [asyncio.create_task(batcher.submit(request)) for request in requests]
    await _until(lambda: batcher.waiting == 32)
    tool.gate.set()
    await asyncio.gather(first, *waiting)
    kinds = [{call.arguments["text"] for call in batch} for batch in tool.batches[1:]]
    assert kinds == [{"bulk"}, {"single"}, {"bulk"}, {"single"}]
    assert [len(batch) for batch in tool.batches[1:]] == [8, 8, 8, 8]
    await batcher.stop()


async def test_waiting_is_not_run_time():
    batcher = _batcher(EchoTool(run_s=0.03), max_batch=1)
    results = await asyncio.gather(*(batcher.submit([_call(str(n))]) for n in range(10)))
    assert all(result.status == "ok" and result.elapsed_s < 0.15 for (result,) in results)
    assert max(result.queued_s for (result,) in results) > 0.2
    await batcher.stop()


async def test_beyond_the_queue_all_or_nothing_is_refused_at_once():
    tool = EchoTool()
    batcher = _batcher(tool, max_queue=4)
    tool.gate.clear()
    running = asyncio.create_task(batcher.submit([_call("runs")]))
    await _until(lambda: tool.batches)
    waiting = asyncio.create_task(batcher.submit([_call(str(n)) for n in range(3)]))
    await _until(lambda: batcher.waiting == 3)
    with pytest.raises(QueueFull) as caught:
        await batcher.submit([_call("x"), _call("y")])
    assert caught.value.retry_after_s > 0
    assert batcher.waiting == 3
    tool.gate.set()
    assert len(await waiting) == 3
    await running
    await batcher.stop()


async def test_a_call_whose_deadline_passed_in_the_queue_is_not_run():
    tool = EchoTool()
    batcher = _batcher(tool)
    tool.gate.clear()
    first = asyncio.create_task(batcher.submit([_call("first")]))
    await _until(lambda: tool.batches)
    late = asyncio.create_task(batcher.submit([_call("late", deadline_s=0.01), _call("calm", deadline_s=60)]))
    await asyncio.sleep(0.03)
    tool.gate.set()
    statuses = [result.status for result in await late]
    assert statuses == ["overloaded", "ok"]
    assert [call.arguments["text"] for batch in tool.batches for call in batch] == ["first", "calm"]
    await first
    await batcher.stop()


async def test_a_cancelled_call_is_dropped_and_its_place_is_free():
    tool = EchoTool()
    batcher = _batcher(tool, max_queue=1)
    tool.gate.clear()
    first = asyncio.create_task(batcher.submit([_call("first")]))
    await _until(lambda: tool.batches)
    gone = asyncio.create_task(batcher.submit([_call("gone")]))
    await _until(lambda: batcher.waiting == 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert batcher.waiting == 0
    kept = asyncio.create_task(batcher.submit([_call("kept")]))
    await _until(lambda: batcher.waiting == 1)
    tool.gate.set()
    await asyncio.gather(first, kept)
    assert [call.arguments["text"] for batch in tool.batches for call in batch] == ["first", "kept"]
    await batcher.stop()


async def test_identical_calls_run_once_and_keep_their_own_ids():
    tool = EchoTool(shared=True)
    batcher = _batcher(tool)
    tool.gate.clear()
    tasks = [asyncio.create_task(batcher.submit([_call("same", str(n)), _call("same", f"{n}b")])) for n in range(5)]
    await _until(lambda: tool.batches)
    tasks[0].cancel()  # the one that brought the work leaves; the others still get it
    tool.gate.set()
    results = [await task for task in tasks[1:]]
    assert [[r.id for r in pair] for pair in results] == [[str(n), f"{n}b"] for n in range(1, 5)]
    assert sum(len(batch) for batch in tool.batches) == 1
    (again,) = await batcher.submit([_call("same", "later")])
    assert (again.id, again.text) == ("later", "echo same")
    assert sum(len(batch) for batch in tool.batches) == 1
    await batcher.stop()


@pytest.mark.parametrize(("entries", "runs"), [(0, 4), (1, 4), (2, 2)])
async def test_the_cache_keeps_the_latest(entries, runs):
    tool = EchoTool(shared=True)
    batcher = _batcher(tool, cache_entries=entries)
    for text in ("a", "b", "a", "b"):
        await batcher.submit([_call(text)])
    assert len(tool.batches) == runs
    await batcher.stop()


async def test_an_exception_of_the_tool_reaches_its_batch_and_the_next_batch_runs():
    tool = EchoTool()
    batcher = _batcher(tool)
    with pytest.raises(ToolFailed, match="echo: RuntimeError"):
        await batcher.submit([ToolCall("1", "echo", {"raise": True}), _call("beside")])
    assert (await batcher.submit([_call("next")]))[0].status == "ok"
    await batcher.stop()


async def test_stopping_answers_everyone():
    tool = EchoTool()
    batcher = _batcher(tool, max_batch=1)
    tool.gate.clear()
    tasks = [asyncio.create_task(batcher.submit([_call(str(n))])) for n in range(3)]
    await _until(lambda: tool.batches and batcher.waiting == 2)
    await batcher.stop()
    assert [(await task)[0].status for task in tasks] == ["overloaded"] * 3


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=7), min_size=1, max_size=8),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 3),
)
def test_every_request_gets_its_own_answers_in_order(requests, max_batch, shared, entries):
    async def run() -> None:
        tool = EchoTool(shared=shared)
        batcher = _batcher(tool, max_batch=max_batch, cache_entries=entries)
        answered = await asyncio.gather(
            *(
                batcher.submit([_call(text, f"{r}.{n}") for n, text in enumerate(texts)])
                for r, texts in enumerate(requests)
            )
        )
        for r, texts in enumerate(requests):
            assert [(a.id, a.text) for a in answered[r]] == [(f"{r}.{n}", f"echo {t}") for n, t in enumerate(texts)]
        assert all(len(batch) <= max_batch for batch in tool.batches)
        assert batcher.waiting == 0
        await batcher.stop()

    asyncio.run(run())

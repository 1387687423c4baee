"""Ctrl-C: stops what waits, lets what computes finish, and the second one stops at once."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from agent_rl.train.interrupt import InterruptFlag


def interrupted(work, said: list[str] | None = None) -> bool:
    with InterruptFlag((said if said is not None else []).append) as flag:
        return asyncio.run(flag.guard(work(flag)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_cancels_what_waits(number) -> None:
    cleaned, said = [], []

    async def work(flag) -> None:
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            cleaned.append(True)

    before = signal.getsignal(number)
    assert interrupted(work, said) is False
    assert cleaned == [True]
    assert len(said) == 1
    assert signal.getsignal(number) is before


def test_computation_that_holds_the_loop_is_finished_first() -> None:
    done = []

    async def work(flag) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        done.append(sum(range(1000)))
        flag.check()
        done.append("never")

    assert interrupted(work) is False
    assert done == [499500]


def test_undisturbed_work_ends_by_itself() -> None:
    async def work(flag) -> None:
        flag.check()
        await asyncio.sleep(0)

    assert interrupted(work) is True


def test_signal_before_the_work_begins_stops_it_before_its_first_line() -> None:
    ran = []

    async def work(flag) -> None:
        ran.append(True)

    with InterruptFlag(lambda _: None) as flag:
        os.kill(os.getpid(), signal.SIGINT)
        assert asyncio.run(flag.guard(work(flag))) is False
    assert not ran


def test_second_signal_stops_at_once() -> None:
    async def work(flag) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        interrupted(work)


def test_cancellation_that_nobody_asked_for_passes_through() -> None:
    async def work(flag) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        interrupted(work)


def test_failure_of_the_work_passes_through() -> None:
    async def work(flag) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        interrupted(work)

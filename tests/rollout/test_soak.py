"""A week of steps in miniature: nothing grows, whatever the rollouts run into.

Each step rolls out groups over the embedded sampler with a scripted tool that is slow, fails, or hangs past the time of
a rollout; the budget for caches is small, and the policy "changes" after each. Set SOAK_STEPS for a longer run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch

from agent_rl.errors import ToolServerUnavailable
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.groups import GroupPlan, run_groups
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import CallAction, ParsedTurn, SearchR1Grammar
from agent_rl.rollout.statistics import rollout_metrics
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.samplers.hf import HFSampler
from agent_rl.testing import EchoTask, ScriptedTools, ToyCodec, tiny_model
from tools.protocol import ToolResult

STEPS = int(os.environ.get("SOAK_STEPS", "2000"))
WARM = STEPS // 4  # allocators and caches find their size
GROWTH_MIB = 24


class EveryTurnCalls(SearchR1Grammar):
    """A tiny random model never writes a tag: whatever it says is a call."""

    def parse(self, text: str, tools: tuple[str, ...]) -> ParsedTurn:
        return ParsedTurn(CallAction("search", {"query": text}))


class TurnsEnd:
    """A turn that was cut at its limit counts as finished, so that its call is made."""

    def __init__(self, sampler: HFSampler) -> None:
        self._sampler, self.end_session = sampler, sampler.end_session

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        return replace(await self._sampler.sample(ids, params, session=session), finish="stop")


class RoughTools(ScriptedTools):
    """Every 7th call fails, every 101st hangs until the rollout's time is up, the others take a moment."""

    def __init__(self) -> None:
        super().__init__(lambda tool, arguments: "a document")
        self.count = 0

    async def call(
        self, tool: str, arguments: dict[str, Any], *, session: str, deadline_s: float | None = None
    ) -> ToolResult:
        self.count += 1
        if self.count % 101 == 0:
            await asyncio.sleep(60)
        if self.count % 7 == 0:
            raise ToolServerUnavailable("down, for once")
        await asyncio.sleep(0.0005 * (self.count % 3))
        return ToolResult(session, "ok", "a document")

    async def end_session(self, session: str) -> None:
        return None


@pytest.mark.slow
def test_two_thousand_steps_leak_nothing() -> None:
    codec, task = ToyCodec(), EchoTask()
    torch.set_num_threads(1)
    sampler = HFSampler(tiny_model(codec.vocabulary), codec, max_batch=8, kv_budget_mb=12 / 1024)
    tools, process = RoughTools(), psutil.Process()
    limits = RolloutLimits(max_turns=2, max_turn_tokens=3, rollout_timeout_s=0.2)
    spec = RolloutSpec(task, TurnsEnd(sampler), tools, EveryTurnCalls(), codec, limits)
    plan = GroupPlan(2, retries=1, max_in_flight=5)
    seen: list[tuple[float, int, int, int]] = []
    evictions = failed = timeouts = 0

    async def run() -> None:
        nonlocal evictions, failed, timeouts
        # Scores are taken in asyncio's own pool, which would grow to its size at some moment of its own.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.to_thread(int)
        for step in range(1, STEPS + 1):
            groups = await run_groups(task.items("train")[:1], spec, plan, seed=step, label=f"step{step}")
            metrics = rollout_metrics(groups)
            failed += int(metrics["rollout/failed"])
            timeouts += round(metrics["rollout/stop/rollout_timeout"] * plan.size)
            evictions += sampler.take_stats().kv_evictions
            sampler.policy_updated(step)
            if step in (WARM, STEPS):
                gc.collect()
                tasks = len(asyncio.all_tasks())
                seen.append((process.memory_info().rss / 2**20, process.num_fds(), threading.active_count(), tasks))

    try:
        asyncio.run(run())
        assert len(sampler._store) == 0
        assert not sampler._store._evicted
    finally:
        sampler.close()
    (memory, *counts), (memory_after, *counts_after) = seen
    print(f"{STEPS} steps, {tools.count} calls, {evictions} evictions, {failed} unscored, {timeouts} timeouts: {seen}")
    assert min(evictions, failed, timeouts) > 0, "the rough parts of it did happen"
    assert counts_after == counts, "file handles, threads, asyncio tasks"
    assert memory_after - memory < GROWTH_MIB

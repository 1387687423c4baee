"""A model from disk, ready to roll out: what `agent-rl eval` and `agent-rl rollout` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar

from agent_rl.config.schema import RunConfig
from agent_rl.rollout.assemble import check_tools, make_codec, make_spec, make_tools, start_tools
from agent_rl.rollout.engine import RolloutSpec
from tasks.base import Task

T = TypeVar("T")


def with_model(config: RunConfig, task: Task, path: str, work: Callable[[RolloutSpec], Awaitable[T]]) -> T:
    """Load the model at ``path``, see that the tool server is ready, and run ``work``; everything is closed after."""
    from agent_rl.samplers.hf import HFSampler
    from agent_rl.train.policy import load_model

    async def run() -> T:
        async with make_tools(config) as tools:
            schemas = await check_tools(config, tools)  # before the model is loaded: the commonest mistake, shown early
            model, tokenizer = load_model(path, config.model)
            codec = make_codec(config, model, tokenizer, schemas)
            sampler = HFSampler(
                model, codec, max_batch=config.sampler.max_batch, kv_budget_mb=config.sampler.kv_budget_mb
            )
            try:
                temperature = config.rollout.temperature
                return await work(make_spec(config, task, codec, sampler, tools, temperature=temperature))
            finally:
                sampler.close()

    with ExitStack() as stack:
        start_tools(config, stack)
        return asyncio.run(run())

"""A model ready to roll out: what `agent-rl eval` and `agent-rl rollout` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar

from agent_rl.config.schema import RunConfig
from agent_rl.rollout.assemble import check_tools, make_spec, make_tools, start_tools
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.samplers.make import open_sampler
from tasks.base import Task

T = TypeVar("T")


def with_model(config: RunConfig, task: Task, path: str, work: Callable[[RolloutSpec], Awaitable[T]]) -> T:
    """Open the sampler over the model at ``path``, see that the tool server is ready, and run ``work``; everything is
    closed after."""

    async def run() -> T:
        async with make_tools(config) as tools:
            schemas = await check_tools(config, tools)  # before the model is loaded: the commonest mistake, shown early
            async with open_sampler(config, path, schemas) as (sampler, codec):
                return await work(
                    make_spec(config, task, codec, sampler, tools, temperature=config.rollout.temperature)
                )

    with ExitStack() as stack:
        start_tools(config, stack)
        return asyncio.run(run())

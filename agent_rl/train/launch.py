"""From a checked configuration to a run: its directory, its tool server, its model, and the trainer over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent_rl.config.schema import EmbeddedBackend, RunConfig, VerlBackend
from agent_rl.errors import ConfigError
from agent_rl.evaluation.result import load
from agent_rl.rollout.assemble import check_tools, make_task, make_tools, start_tools
from agent_rl.samplers.make import check_trainable
from agent_rl.train.interrupt import InterruptFlag
from agent_rl.train.policy import Policy, load_model
from agent_rl.train.run_dir import RunDir
from agent_rl.train.trainer import Trainer, TrainResult

Log = Callable[[str], None]


def train(config: RunConfig, *, log: Log = print) -> TrainResult:
    """Train as ``config`` says, or go on where the run in ``config.run_dir`` stopped.

    Raises UsageError (no tool server, a run that may not be touched), ConfigError, TrainingError, ArtifactError.
    """
    if config.rollout.temperature == 0:
        raise ConfigError(
            "rollout.temperature=0: all responses of a group would be one and the same, with nothing to learn from "
            "their difference; use rollout.temperature=1.0"
        )
    if isinstance(config.backend, VerlBackend):
        from agent_rl.backends.verl.launch import train_under_verl

        return train_under_verl(config, config.backend, log)
    return _run(config, log, rl=True)


def warmup(config: RunConfig, *, log: Log = print) -> TrainResult:
    """The supervised warm-up alone, in this process whatever the backend; `train` with the same run_dir goes on
    from it."""
    if config.warmup.traces == 0:
        raise ConfigError("warmup.traces=0: there is nothing to do; give warmup.traces=200, say")
    return _run(config, log, rl=False)


def _run(config: RunConfig, log: Log, *, rl: bool) -> TrainResult:
    from agent_rl.models import resolve_model_path

    check_trainable(config)
    run_dir = RunDir(Path(config.run_dir))
    with ExitStack() as stack:
        stack.enter_context(run_dir.lock())
        start = run_dir.prepare(config, log)
        if start is not None and _all_done(config, start.step, rl=rl):
            log(f"{config.run_dir} is already at step {start.step}: nothing left to do")
            return TrainResult(run_dir.path, start.step)
        task = make_task(config)
        start_tools(config, stack)
        schemas = asyncio.run(check_server(config))  # before the model is loaded: the commonest mistake
        if isinstance(config.backend, EmbeddedBackend) and config.backend.threads:
            import torch

            torch.set_num_threads(config.backend.threads)
        model, tokenizer = load_model(resolve_model_path(config.model.path), config.model)
        policy = Policy(model, config.model, config.train.optim, compiled=config.train.compile)
        trainer = Trainer(config, run_dir, task, policy, tokenizer, log, schemas)
        stack.callback(trainer.close)
        if start is not None:
            trainer.resume(start)
        interrupt = stack.enter_context(InterruptFlag(log))
        return asyncio.run(trainer.run(interrupt, rl=rl))


def _all_done(config: RunConfig, step: int, *, rl: bool) -> bool:
    """A run that was stopped in its last evaluation has all its steps, but is not done."""
    if rl and config.eval.after and load(Path(config.run_dir) / "eval", "after") is None:
        return False
    return step >= (config.train.steps if rl else 0)


async def check_server(config: RunConfig) -> list[dict[str, Any]]:
    async with make_tools(config) as tools:
        return await check_tools(config, tools)

"""verl's agent loop: `run_rollout`, and its trajectory in the shape that verl stores."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from agent_rl.backends.verl.dataset import read_item
from agent_rl.backends.verl.sampler import VerlSampler
from agent_rl.config.schema import RunConfig, VerlBackend
from agent_rl.layout import assert_layout
from agent_rl.rollout.assemble import make_spec, make_task, make_tools
from agent_rl.rollout.codec import HFCodec
from agent_rl.rollout.distant_codec import codec_of
from agent_rl.rollout.groups import run_member
from agent_rl.rollout.ledger import Author
from agent_rl.rollout.tool_client import ToolClient
from agent_rl.rollout.trajectory import Trajectory
from tasks.base import Task


@dataclass(slots=True)
class Runtime:
    """What all trajectories of one worker process share. The run's limits are shared out among the workers."""

    config: RunConfig
    task: Task
    codec: HFCodec
    tools: ToolClient
    slots: asyncio.Semaphore


@lru_cache(maxsize=1)
def runtime(run: str, model_path: str, tool_schemas: str) -> Runtime:
    """``run``: the RunConfig as JSON; ``tool_schemas`` a JSON list. Made once a process, in its event loop."""
    assert_layout()
    config = RunConfig.model_validate_json(run)
    assert isinstance(config.backend, VerlBackend)
    workers = config.backend.agent_workers
    connections = math.ceil(config.tools.max_connections / workers)
    shared = config.tools.model_copy(update={"max_connections": connections})
    return Runtime(
        config=config,
        task=make_task(config),
        codec=codec_of(model_path, config, json.loads(tool_schemas)),
        tools=make_tools(config.model_copy(update={"tools": shared})),
        slots=asyncio.Semaphore(math.ceil(config.rollout.max_in_flight / workers)),
    )


class RolloutLoop(AgentLoopBase):
    """One trajectory. Made by verl for each of them, from the file at ``rollout.agent.agent_loop_config_path``."""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **rest: Any) -> None:
        # Not verl's own, which prepares a chat template machinery for each trajectory that nothing here uses.
        self.config, self.server_manager, self.tokenizer = trainer_config.config, server_manager, tokenizer

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """``row``: a row of the exported dataset, with verl's ``global_steps`` and ``session_id`` (its number).

        Never raises: an error that is no failure of infrastructure goes with the row to the driver, which ends the run.
        """
        step, sample = int(row["global_steps"]), int(row["session_id"])
        info = row["extra_info"]
        place = int(info["place"])
        item = read_item(info["item"])
        ours = self.config.agent_rl
        parts = runtime(ours.run, ours.model_path, ours.tool_schemas)
        config = parts.config
        sampler = VerlSampler(self.server_manager, parts.codec)
        spec = make_spec(config, parts.task, parts.codec, sampler, parts.tools, temperature=config.rollout.temperature)
        try:
            async with parts.slots:
                trajectory = await run_member(
                    item,
                    spec,
                    seed=config.seed,
                    group=f"train/{step}/{place}/{item.id}",
                    sample=sample,
                    retries=config.rollout.retries,
                )
        except Exception as error:
            return _output([self._filler()], [self._filler()], trained=False, step=step, fatal=_said(error))
        return trajectory_output(trajectory, sampler.versions, place=place, step=step, filler=self._filler())

    def _filler(self) -> int:
        return int(self.tokenizer.eos_token_id or 0)


def trajectory_output(
    trajectory: Trajectory, versions: list[int], *, place: int, step: int, filler: int
) -> AgentLoopOutput:
    """The ledger cut after its prompt; an unscored trajectory is one token with mask 0, which no loss sees.

    The trajectory itself goes with it, for the driver's statistics and records. ``filler`` is any token id.
    """
    ledger = trajectory.ledger
    ids, start = ledger.input_ids, ledger.count(Author.PROMPT)
    fields = {"place": place, "trajectory": pickle.dumps(trajectory)}
    prompt = ids[:start] or [filler]
    if trajectory.score is None or start == len(ids):
        return _output(prompt, [filler], trained=False, step=step, versions=versions, **fields)
    output = _output(prompt, ids[start:], trained=True, step=step, versions=versions, **fields)
    output.response_mask = ledger.loss_mask[start:]
    output.response_logprobs = ledger.logprobs[start:]
    output.reward_score = trajectory.score.value
    output.num_turns = len(trajectory.turns)
    output.metrics = AgentLoopMetrics(
        generate_sequences=sum(turn.generate_s for turn in trajectory.turns),
        tool_calls=sum(turn.tool_s for turn in trajectory.turns),
    )
    return output


def _output(
    prompt: list[int],
    response: list[int],
    *,
    trained: bool,
    step: int,
    versions: list[int] | None = None,
    **fields: Any,
) -> AgentLoopOutput:
    # verl's statistics need the versions of every row: without a sampled turn, the one that this step samples from.
    seen = versions or [step - 1]
    return AgentLoopOutput(
        prompt_ids=prompt,
        response_ids=response,
        response_mask=[int(trained)] * len(response),
        response_logprobs=[0.0] * len(response),
        reward_score=0.0,
        num_turns=0,
        metrics=AgentLoopMetrics(),
        extra_fields={
            "min_global_steps": min(seen),
            "max_global_steps": max(seen),
            "global_steps": max(seen),
            "reward_extra_info": {},
            **fields,
        },
    )


def _said(error: Exception) -> str:
    return json.dumps({"type": type(error).__name__, "message": str(error)})

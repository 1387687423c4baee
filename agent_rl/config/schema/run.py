"""The whole configuration of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.config.schema.alarm import AlarmConfig
from agent_rl.config.schema.algo import AlgoConfig
from agent_rl.config.schema.backend import BackendConfig, EmbeddedBackend
from agent_rl.config.schema.evaluation import EvalConfig
from agent_rl.config.schema.model import ModelConfig
from agent_rl.config.schema.record import PathText, Record
from agent_rl.config.schema.rollout import RolloutConfig
from agent_rl.config.schema.sampler import HFSamplerConfig, SamplerConfig
from agent_rl.config.schema.tasks import SearchTask, TaskConfig
from agent_rl.config.schema.tools import ToolsConfig
from agent_rl.config.schema.train import TrainConfig, WarmupConfig


class LoggingConfig(Record):
    tensorboard: bool = True
    wandb: bool = False
    wandb_project: str = "agent_rl"
    trackio: bool = False
    trackio_project: str = "agent_rl"


class RunConfig(Record):
    """`agent-rl train`, `warmup`, `eval` and `rollout`."""

    task: TaskConfig = SearchTask()
    algo: AlgoConfig = AlgoConfig()
    model: ModelConfig = ModelConfig()
    sampler: SamplerConfig = HFSamplerConfig()
    tools: ToolsConfig = ToolsConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    warmup: WarmupConfig = WarmupConfig()
    eval: EvalConfig = EvalConfig()
    alarm: AlarmConfig = AlarmConfig()
    logging: LoggingConfig = LoggingConfig()
    backend: BackendConfig = EmbeddedBackend()
    seed: int = 0
    run_dir: PathText = Field("runs/search", description="where everything of the run is written")
    resume: Literal["auto", "never", "must"] = Field(
        "auto",
        description="auto: continue a run found in run_dir; never: refuse to touch one; must: need one",
    )

    @model_validator(mode="after")
    def _has_meaning(self) -> RunConfig:
        faults = []
        group, algo = self.rollout.group_size, self.algo
        if algo.advantage != "reinforce_pp" and group == 1:
            faults.append(
                f"rollout.group_size=1 with algo.advantage={algo.advantage}: one reward has nothing to be compared "
                "with (and no std); use a larger group, or algo.advantage=reinforce_pp"
            )
        if algo.group_filter.kind == "drop_uniform" and group == 1:
            faults.append(
                "rollout.group_size=1 with algo.group_filter.kind=drop_uniform: every group of one is uniform and "
                "would be dropped; use algo.group_filter.kind=keep"
            )
        if algo.surrogate == "reinforce" and self.train.updates_per_rollout > 1:
            faults.append(
                f"train.updates_per_rollout={self.train.updates_per_rollout} with algo.surrogate=reinforce: from the "
                "second update on the rollouts are another policy's, and reinforce has no ratio to correct for that; "
                "use train.updates_per_rollout=1, or algo.surrogate=clip"
            )
        if self.rollout.min_group > group:
            faults.append(f"rollout.min_group={self.rollout.min_group} is above rollout.group_size={group}")
        sequences = self.train.prompts_per_step * group
        if self.train.updates_per_rollout > self.train.prompts_per_step:
            faults.append(
                f"train.updates_per_rollout={self.train.updates_per_rollout} is above the "
                f"{self.train.prompts_per_step} prompts ({sequences} sequences) of a step"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self

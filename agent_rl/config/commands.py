"""What each command composes: its primary YAML file and the record that it fills.

``eval`` and ``rollout`` take the run's configuration plus a few keys of their own.
"""

from __future__ import annotations

from pydantic import Field

from agent_rl.config.schema import (
    BuildIndexConfig,
    MiniwikiData,
    PositiveInt,
    Record,
    RunConfig,
    ServeToolsConfig,
)


class EvalCommand(RunConfig):
    """`agent-rl eval`: the run's configuration and where the weights and the results lie."""

    run: str | None = Field(None, description="a run directory: its saved config is the base of this one")
    checkpoint: str | None = Field(
        None,
        description="a checkpoint folder, or `latest` of `run`; not given: the model as `model.path` has it",
    )
    out: str | None = Field(None, description="folder of the results; not given: eval/ in the run directory")


class RolloutCommand(RunConfig):
    """`agent-rl rollout`: sample trajectories and show them, without training."""

    run: str | None = Field(None, description="a run directory: its saved config is the base of this one")
    questions: PositiveInt = 4
    out: str | None = Field(
        None, description="folder of the trajectories; not given: rollouts/ in the run directory"
    )


class MiniwikiCommand(MiniwikiData):
    """`agent-rl data miniwiki`: the generator's settings and the folder to write."""

    out: str = "data/miniwiki"


COMMANDS: dict[str, tuple[str, type[Record]]] = {
    "train": ("train", RunConfig),
    "warmup": ("train", RunConfig),
    "eval": ("train", EvalCommand),
    "rollout": ("train", RolloutCommand),
    "data-check": ("train", RunConfig),
    "doctor": ("train", RunConfig),
    "data-miniwiki": ("data_miniwiki", MiniwikiCommand),
    "build-index": ("build_index", BuildIndexConfig),
    "serve-tools": ("serve_tools", ServeToolsConfig),
}


def run_config(command: RunConfig) -> RunConfig:
    """The plain RunConfig inside a command's record, without the command's own keys."""
    return RunConfig(**{name: getattr(command, name) for name in RunConfig.model_fields})

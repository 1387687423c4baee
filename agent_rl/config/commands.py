"""What each command composes: its primary YAML file and the record that it fills.

``eval`` and ``rollout`` take the run's configuration plus a few keys of their own.
"""

from __future__ import annotations

from pydantic import Field

from agent_rl.config.schema import (
    BuildIndexConfig,
    FileList,
    MiniwikiData,
    PathText,
    PositiveInt,
    Record,
    RunConfig,
    ServeToolsConfig,
)


class CheckpointCommand(RunConfig):
    """What `eval` and `rollout` have beside the run's configuration."""

    run: str | None = Field(None, description="a run directory: its saved config is the base of this one")
    checkpoint: str | int | None = Field(
        None,
        description="latest, a step, a folder, or base (the model of model.path); default: latest with run, else base",
    )
    out: str | None = Field(None, description="folder of the results; default: a folder in run_dir")

    def chosen_checkpoint(self) -> str | None:
        """The checkpoint to load, or None for the model of ``model.path``."""
        if self.checkpoint is None:
            return None if self.run is None else "latest"
        return None if self.checkpoint == "base" else str(self.checkpoint)


class EvalCommand(CheckpointCommand):
    """`agent-rl eval`: answer held-out questions and score the answers."""


class RolloutCommand(CheckpointCommand):
    """`agent-rl rollout`: sample trajectories and show them, without training."""

    questions: PositiveInt = 4


class MiniwikiCommand(MiniwikiData):
    """`agent-rl data miniwiki`: the generator's settings and the folder to write."""

    out: PathText = "data/miniwiki"


class PrepareCommand(Record):
    """`agent-rl data prepare`: which public set, and where to."""

    name: str | None = Field(None, description="a set of `agent-rl data prepare`, which lists them")
    out: PathText | None = Field(None, description="folder to write; default: data/<name>")
    train: FileList = Field((), description="files you have, in place of a download")
    test: FileList = Field((), description="files you have, in place of a download")


COMMANDS: dict[str, tuple[str, type[Record]]] = {
    "train": ("train", RunConfig),
    "warmup": ("train", RunConfig),
    "eval": ("train", EvalCommand),
    "rollout": ("train", RolloutCommand),
    "data-check": ("train", RunConfig),
    "doctor": ("train", RunConfig),
    "data-prepare": ("data_prepare", PrepareCommand),
    "data-miniwiki": ("data_miniwiki", MiniwikiCommand),
    "build-index": ("build_index", BuildIndexConfig),
    "serve-tools": ("serve_tools", ServeToolsConfig),
}


def run_config(command: RunConfig) -> RunConfig:
    """The plain RunConfig inside a command's record, without the command's own keys."""
    return RunConfig(**{name: getattr(command, name) for name in RunConfig.model_fields})

"""What each command composes: its primary YAML file and the record that it fills.

``eval`` and ``rollout`` take the run's configuration plus a few keys of their own.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from agent_rl.config.schema import (
    BenchIndexConfig,
    BenchReportConfig,
    BenchRetrievalConfig,
    BenchRolloutConfig,
    BenchSandboxConfig,
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

    sets: tuple[PathText, ...] = Field(
        (),
        description="files of questions, or folders of data prepare (test split); empty: the task's eval.split",
    )
    max_per_set: PositiveInt | None = Field(None, description="a seeded subset of so many questions of each of sets")
    coverage: str | None = Field(None, description="a file of data coverage: EM is also told of the answerable part")
    label: str | None = Field(None, description="name of the result's files; default: checkpoint and split")


class CoverageCommand(RunConfig):
    """`agent-rl data coverage`: what an index can answer of the task's questions, or of several sets."""

    index: PathText = Field("indexes/miniwiki", description="folder of the index")
    sets: tuple[PathText, ...] = Field((), description="files or folders of questions; empty: the task's eval.split")
    max_per_set: PositiveInt | None = None
    depths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field((3, 10), description="k of recall@k")
    out: PathText = Field("coverage.jsonl", description="file of the rows, for `agent-rl eval coverage=`")


class RolloutCommand(CheckpointCommand):
    """`agent-rl rollout`: sample trajectories and show them, without training."""

    questions: PositiveInt = 4


class BenchObjectiveCommand(RunConfig):
    """`agent-rl bench objective`: a run's recorded batch under several presets."""

    run: str | None = Field(None, description="needed: a run directory with trajectories and a checkpoint")
    checkpoint: str | int = Field("latest", description="whose weights: latest, a step, or a folder")
    step: PositiveInt | None = Field(None, description="whose trajectories; null: the first step that has any")
    presets: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("grpo", "tr_grpo", "tr_grpo_eq9", "tr_grpo_reverse", "ar"), description="presets of algo for the table"
    )
    peer: str = Field("grpo", description="preset that the cost of algo is measured against")
    pairs: PositiveInt = Field(7, description="timed pairs of updates")


class BenchTrainCommand(RunConfig):
    """`agent-rl bench train`: our training step beside the padded full-logits step."""

    sequences: PositiveInt = 32
    min_tokens: Annotated[int, Field(ge=8, description="of a sequence")] = 60
    max_tokens: Annotated[int, Field(ge=8, description="of a sequence")] = 300
    trained_fraction: Annotated[float, Field(gt=0, le=0.8, description="of a sequence's tokens")] = 0.25
    shared_prompts: bool = Field(False, description="each group of rollout.group_size begins with one prompt")
    scale: PositiveInt = Field(4, description="also measure our step on so many times the sequences (1: no)")
    plain_rows: PositiveInt = Field(8, description="sequences in a micro-batch of the plain step")
    check: bool = Field(True, description="first compare the gradients of the two, in float32, with exact ones")
    rounds: PositiveInt = 3
    trl: PathText | None = Field(None, description="a python with TRL: its GRPOTrainer's step is measured too")
    out: PathText | None = Field(None, description="file for the figures, as JSON")

    @model_validator(mode="after")
    def _lengths_in_order(self) -> BenchTrainCommand:
        if self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens={self.max_tokens} is below min_tokens={self.min_tokens}")
        return self


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
    "data-coverage": ("train", CoverageCommand),
    "doctor": ("train", RunConfig),
    "data-prepare": ("data_prepare", PrepareCommand),
    "data-miniwiki": ("data_miniwiki", MiniwikiCommand),
    "bench-objective": ("train", BenchObjectiveCommand),
    "bench-train": ("train", BenchTrainCommand),
    "build-index": ("build_index", BuildIndexConfig),
    "serve-tools": ("serve_tools", ServeToolsConfig),
    "bench-report": ("bench_report", BenchReportConfig),
    "bench-sandbox": ("bench_sandbox", BenchSandboxConfig),
    "bench-index": ("bench_index", BenchIndexConfig),
    "bench-retrieval": ("bench_retrieval", BenchRetrievalConfig),
    "bench-rollout": ("bench_rollout", BenchRolloutConfig),
}


def run_config(command: RunConfig) -> RunConfig:
    """The plain RunConfig inside a command's record, without the command's own keys."""
    return RunConfig(**{name: getattr(command, name) for name in RunConfig.model_fields})

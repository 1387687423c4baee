"""Evaluation during training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.config.schema.record import NonNegativeInt, PositiveInt, Record


class EvalConfig(Record):
    """Evaluation during training: every ``every_steps`` steps (0: only where asked by before/after)."""

    every_steps: NonNegativeInt = 0
    before: bool = Field(False, description="evaluate after the warm-up, before the first RL step")
    after: bool = Field(False, description="evaluate after the last step")
    split: Literal["dev", "test"] = "dev"
    questions: PositiveInt = 100
    samples: NonNegativeInt = Field(4, description="sampled answers per question at the training temperature")
    greedy: bool = True
    seed: int = 0

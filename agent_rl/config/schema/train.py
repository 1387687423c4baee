"""Optimiser, warm-up and training steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.config.schema.record import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Record,
)


class OptimConfig(Record):
    lr: PositiveFloat = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_steps: NonNegativeInt = 0
    min_lr_fraction: Fraction = 0.0
    weight_decay: NonNegativeFloat = 0.0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat = 1.0


class WarmupConfig(Record):
    """Supervised steps on oracle trajectories before RL (0 traces: no warm-up)."""

    traces: NonNegativeInt = 0
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 8
    lr: PositiveFloat = 5e-5


class TrainConfig(Record):
    steps: PositiveInt = 100
    prompts_per_step: PositiveInt = 32
    updates_per_rollout: PositiveInt = 1
    max_batch_tokens: PositiveInt = Field(8192, description="tokens of one micro-batch")
    logprob_chunk_tokens: PositiveInt = Field(512, description="trained positions whose logits exist at once")
    compile: bool = Field(False, description="updates run the decoder through torch.compile; a minute or more at first")
    optim: OptimConfig = OptimConfig()
    drop_uniform_groups_from_batch: bool = Field(
        True,
        description="skip the forward pass of groups whose advantages are all zero when beta = 0; same loss",
    )
    checkpoint_every_steps: PositiveInt = 20
    keep_checkpoints: PositiveInt = 2
    save_trajectories_every_steps: PositiveInt = 1

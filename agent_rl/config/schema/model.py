"""The model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.config.schema.record import (
    PositiveInt,
    Record,
)


class LoraConfig(Record):
    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class ModelConfig(Record):
    path: str = Field("smollm2-135m", description="a fetched name (agent-rl fetch), a hub id, or a local folder")
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="compute dtype; auto: bfloat16 where the machine has bf16 instructions"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    prompt_format: Literal["chat_template", "plain"] = "chat_template"
    lora: LoraConfig | None = None
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False

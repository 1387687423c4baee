"""What draws from the policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from agent_rl.config.schema.record import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, Record


class HFSamplerConfig(Record):
    kind: Literal["hf"] = "hf"
    max_batch: PositiveInt = Field(64, description="turns decoded together")
    kv_budget_mb: NonNegativeInt = Field(
        4096,
        description="MiB for the KV caches of trajectories that wait for a tool, and of prompts; "
        "beyond it they are dropped and prefilled again",
    )


class VLLMSamplerConfig(Record):
    kind: Literal["vllm"] = "vllm"
    max_batch: PositiveInt = Field(64, description="turns decoded together")
    kv_cache_gb: PositiveFloat | None = Field(
        None, description="GiB of KV cache; null: what gpu_memory_fraction leaves of a GPU, 2 without one"
    )
    gpu_memory_fraction: Fraction = Field(0.4, description="of the GPU, weights included; training needs the rest")
    max_model_tokens: PositiveInt | None = Field(None, description="null: max_prompt_tokens + max_response_tokens")
    enforce_eager: bool | None = Field(None, description="no CUDA graphs; null: only without a GPU")
    sleep: bool = Field(False, description="give the GPU's memory back while the policy is updated")
    engine_args: dict[str, Any] = Field({}, description="further arguments of vLLM's engine, by their own names")


class RemoteSamplerConfig(Record):
    kind: Literal["remote"] = "remote"
    api: Literal["completions", "sglang", "chat"] = Field(
        "completions",
        description="completions: OpenAI's with token ids (vLLM); sglang: its /generate; chat: any, for eval alone",
    )
    url: str = Field("http://127.0.0.1:8000", min_length=1, description="of the server, without /v1")
    model: str | None = Field(None, description="the server's name for it; null: the first that it lists")
    key_env: str = Field("OPENAI_API_KEY", description="environment variable with the key, sent where it is set")
    max_batch: PositiveInt = Field(64, description="requests under way together")
    timeout_s: PositiveFloat = Field(300.0, description="of one turn, its repetitions included")
    retries: NonNegativeInt = Field(4, description="repetitions after a lost connection, 429 or 5xx")
    extra_body: dict[str, Any] = Field({}, description="further fields of each request, such as top_p")


SamplerConfig = Annotated[HFSamplerConfig | VLLMSamplerConfig | RemoteSamplerConfig, Field(discriminator="kind")]

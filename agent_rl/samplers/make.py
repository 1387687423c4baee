"""The sampler that ``config.sampler`` names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from agent_rl.config.schema import HFSamplerConfig, RemoteSamplerConfig, RunConfig, VLLMSamplerConfig
from agent_rl.errors import ConfigError
from agent_rl.rollout.assemble import make_codec
from agent_rl.rollout.codec import HFCodec, TokenCodec
from agent_rl.rollout.distant_codec import codec_of, load_tokenizer
from agent_rl.samplers.base import Sampler
from agent_rl.samplers.stats import SamplerStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agent_rl.samplers.hf import HFSampler
    from agent_rl.samplers.vllm import VLLMSampler


class PolicySampler(Sampler, Protocol):
    """A sampler whose model is the one under training."""

    def policy_updated(self, version: int) -> None:
        """From now on sample from the policy's new weights. Raises RuntimeError while a turn is being sampled."""
        ...

    def release_memory(self) -> None:
        """Nothing is sampled until the next ``policy_updated``: what the sampler can give back meanwhile."""
        ...

    def take_stats(self) -> SamplerStats: ...

    def close(self) -> None: ...


def check_trainable(config: RunConfig) -> None:
    """Raise ConfigError where the sampler cannot follow the model that is trained."""
    if isinstance(config.sampler, RemoteSamplerConfig):
        raise ConfigError(
            "sampler=remote cannot be trained with: nothing brings the new weights to its server; use sampler=hf, "
            "sampler=vllm (one GPU) or backend=verl"
        )
    if isinstance(config.sampler, VLLMSamplerConfig) and config.model.lora is not None:
        raise ConfigError(
            "model.lora with sampler=vllm: vLLM would be given merged weights, which lose the adapter's last bits in "
            "half precision; use sampler=hf, or train all weights"
        )


def make_policy_sampler(config: RunConfig, path: str, model: PreTrainedModel, codec: TokenCodec) -> PolicySampler:
    """The sampler of a training run of ``model``, which was loaded from ``path``, for a config that
    ``check_trainable`` let pass. Raises ConfigError where vLLM cannot be used."""
    assert not isinstance(config.sampler, RemoteSamplerConfig)
    if isinstance(config.sampler, VLLMSamplerConfig):
        return _vllm(config, config.sampler, path, codec, model)
    return _hf(config.sampler, model, codec)


@asynccontextmanager
async def open_sampler(
    config: RunConfig, path: str, tool_schemas: Sequence[dict[str, Any]]
) -> AsyncIterator[tuple[Sampler, HFCodec]]:
    """A sampler over the model at ``path`` (sampler=remote: over its server's, with the tokenizer at ``path``) and the
    codec that goes with it. Raises ConfigError, ArtifactError, and UsageError where a server does not answer."""
    if isinstance(config.sampler, RemoteSamplerConfig):
        async with _remote(config, config.sampler, path, tool_schemas) as found:
            yield found
        return
    sampler: Any
    if isinstance(config.sampler, VLLMSamplerConfig):
        codec = codec_of(path, config, tool_schemas)
        sampler = _vllm(config, config.sampler, path, codec, None)
    else:
        from agent_rl.train.policy import load_model

        model, tokenizer = load_model(path, config.model)
        codec = make_codec(config, model, tokenizer, tool_schemas)
        sampler = _hf(config.sampler, model, codec)
    try:
        yield sampler, codec
    finally:
        sampler.close()


@asynccontextmanager
async def _remote(
    config: RunConfig, sampler: RemoteSamplerConfig, path: str, tool_schemas: Sequence[dict[str, Any]]
) -> AsyncIterator[tuple[Sampler, HFCodec]]:
    from agent_rl.samplers.chat import ChatCodec, ChatSampler
    from agent_rl.samplers.http import ModelServer
    from agent_rl.samplers.remote import RemoteSampler

    server = ModelServer(sampler)
    try:
        name = await server.model_name()
        if sampler.api == "chat":
            if tool_schemas:
                raise ConfigError("rollout.grammar=hermes is not carried by sampler.api=chat; use another grammar")
            tokenizer, ends = load_tokenizer(path, config)
            chat_codec = ChatCodec(tokenizer, config.model.prompt_format, ends)
            chat = ChatSampler(server, chat_codec, name)
            await chat.check()
            yield chat, chat_codec
        else:
            codec = codec_of(path, config, tool_schemas)
            remote = RemoteSampler(server, codec, name)
            await remote.check()
            yield remote, codec
    finally:
        await server.aclose()


def _hf(config: HFSamplerConfig, model: PreTrainedModel, codec: TokenCodec) -> HFSampler:
    from agent_rl.samplers.hf import HFSampler

    return HFSampler(model, codec, max_batch=config.max_batch, kv_budget_mb=config.kv_budget_mb)


def _vllm(
    config: RunConfig, sampler: VLLMSamplerConfig, path: str, codec: TokenCodec, policy: PreTrainedModel | None
) -> VLLMSampler:
    from agent_rl.samplers.vllm import EngineSettings, VLLMSampler
    from agent_rl.train.precision import choose_device, choose_dtype

    device = choose_device(config.model.device)
    settings = EngineSettings(
        path=path,
        device=device.type,
        dtype=str(choose_dtype(config.model.dtype, device)).removeprefix("torch."),
        max_model_tokens=config.rollout.max_prompt_tokens + config.rollout.max_response_tokens,
        revision=config.model.revision,
        trust_remote_code=config.model.trust_remote_code,
    )
    return VLLMSampler(settings, codec, sampler, policy)

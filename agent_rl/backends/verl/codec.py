"""The codec of a model whose weights live elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_rl.config.schema import RunConfig
from agent_rl.errors import UsageError
from agent_rl.rollout.codec import HFCodec


def codec_of(model_path: str, config: RunConfig, tool_schemas: Sequence[dict[str, Any]] = ()) -> HFCodec:
    """What `assemble.make_codec` makes of a loaded model: its tokenizer, and every id that ends a turn.

    ``tool_schemas``: as for `make_codec`. Raises UsageError where there is no such model.
    """
    from transformers import AutoTokenizer, GenerationConfig

    common: dict[str, Any] = {"revision": config.model.revision}
    remote: dict[str, Any] = {"trust_remote_code": config.model.trust_remote_code}
    model_config = load_model_config(model_path, config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, **common, **remote)
    except (OSError, ValueError) as error:
        raise UsageError(_unknown(config, model_path, error)) from error
    try:
        eos = GenerationConfig.from_pretrained(model_path, **common).eos_token_id
    except OSError:  # a model may come without one: then its config says it, as transformers itself would
        eos = getattr(model_config, "eos_token_id", None)
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return HFCodec(tokenizer, config.model.prompt_format, ids, tool_schemas)


def load_model_config(model_path: str, config: RunConfig) -> Any:
    """transformers' configuration of the model. Raises UsageError where there is no such model."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            model_path, revision=config.model.revision, trust_remote_code=config.model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UsageError(_unknown(config, model_path, error)) from error


def _unknown(config: RunConfig, path: str, error: Exception) -> str:
    return f"model.path={config.model.path}: no model to be had at {path}: {str(error).strip().splitlines()[0]}"

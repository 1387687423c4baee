"""The codec of a model whose weights live elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_rl.config.schema import RunConfig
from agent_rl.errors import UsageError
from agent_rl.rollout.codec import HFCodec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def codec_of(model_path: str, config: RunConfig, tool_schemas: Sequence[dict[str, Any]] = ()) -> HFCodec:
    """What `assemble.make_codec` makes of a loaded model. ``tool_schemas``: as there. Raises as `load_tokenizer`."""
    tokenizer, ends = load_tokenizer(model_path, config)
    return HFCodec(tokenizer, config.model.prompt_format, ends, tool_schemas)


def load_tokenizer(model_path: str, config: RunConfig) -> tuple[PreTrainedTokenizerBase, list[int]]:
    """The model's tokenizer, and the ids that its generation config ends a turn with.

    Raises UsageError where there is no such model.
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
    return tokenizer, eos if isinstance(eos, list) else [] if eos is None else [eos]


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

"""The project's attention, as transformers calls it: one name, and what suits each use.

Sampling: packed turns over the KV slab (samplers/packed.py), for a pass that says whose tokens it holds. Training:
packed rows (train/packed_attention.py). All else goes to transformers' own SDPA attention.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agent_rl.samplers.packed import PackedPass
from agent_rl.samplers.packed import packed_attention as sampling_attention
from agent_rl.train.packed_attention import Packing
from agent_rl.train.packed_attention import packed_attention as training_attention

NAME = "agent_rl_sdpa"


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    packed: PackedPass | None = None,
    packing: Packing | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """query [B, heads, T, D], key and value [B, kv_heads, N, D] -> [B, T, heads, D].

    With ``packed``, key and value are a layer of the KV slab, and B is 1. Raises RuntimeError for a model that does not
    hand the pass on.
    """
    scaling = scaling or query.shape[-1] ** -0.5
    if packed is not None:
        return sampling_attention(query, key, value, packed, scaling), None
    if packing is not None:
        return training_attention(query, key, value, packing, scaling=scaling, dropout=dropout), None
    if key.shape[0] != query.shape[0]:
        raise RuntimeError(f"{type(module).__name__} does not hand the sampler's pass on to its attention")
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scaling,
        is_causal=is_causal,
        **kwargs,
    )


def register() -> str:
    """Make the attention known to transformers; returns the name for ``attn_implementation``."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME

"""Attention with grouped queries, without repeating keys and values.

Decoding: with one query token a row, the G query heads that share a key-value head can stand as G query
positions: the same products, but the cache is read once instead of being copied G times.

Training: packed rows (agent_rl/train/packed_attention.py).

All else goes to transformers' own SDPA attention.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agent_rl.train.packed_attention import Packing, packed_attention

NAME = "agent_rl_sdpa"


def grouped_query_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    packing: Packing | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """query [B, heads, T, D], key and value [B, kv_heads, N, D] -> [B, T, heads, D]."""
    rows, heads, length, dim = query.shape
    groups = heads // key.shape[1]
    if packing is not None:
        return packed_attention(query, key, value, packing, scaling=scaling or dim**-0.5, dropout=dropout), None
    if length != 1 or groups == 1 or attention_mask is None:
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
    grouped = query.reshape(rows, key.shape[1], groups, dim)
    out = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return out.reshape(rows, 1, heads, dim), None


def register() -> str:
    """Make the attention known to transformers; returns the name for ``attn_implementation``."""
    AttentionInterface.register(NAME, grouped_query_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME

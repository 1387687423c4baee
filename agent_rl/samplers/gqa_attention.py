"""The project's attention, as transformers calls it: one name, and what suits each use.

Sampling: ``packed_attention`` over the KV slab, for a pass that says whose tokens it holds.

Training in bfloat16 on a CPU: two matrix products and a softmax, since the backward pass of torch's fused kernel is
slow there, for the same error.

All else goes to transformers' own SDPA attention.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agent_rl.samplers.packed import PackedPass, packed_attention

NAME = "agent_rl_sdpa"
# The plain products hold T x T scores of every head; beyond this length the fused kernel's memory matters more.
PLAIN_MAX_TOKENS = 1024


def grouped_query_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    packed: PackedPass | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """query [B, heads, T, D], key and value [B, kv_heads, N, D] -> [B, T, heads, D].

    With ``packed``, key and value are a layer of the KV slab, and B is 1.
    """
    rows, heads, length, dim = query.shape
    groups = heads // key.shape[1]
    if packed is not None:
        return packed_attention(query, key, value, packed, scaling or dim**-0.5), None
    if key.shape[0] != rows:
        raise RuntimeError(f"{type(module).__name__} does not hand the sampler's pass on to its attention")
    if (
        attention_mask is None
        and query.requires_grad
        and query.dtype is torch.bfloat16
        and query.device.type == "cpu"
        and 1 < length == key.shape[2] <= PLAIN_MAX_TOKENS
        and dropout == 0
    ):
        return _plain_causal(query, key, value, groups, scaling or dim**-0.5), None
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


def _plain_causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: int, scaling: float
) -> torch.Tensor:
    """Causal attention as matrix products; the scores of the G query heads of a key-value head are one matrix."""
    rows, heads, length, dim = query.shape
    kv_heads = key.shape[1]
    stacked = query.reshape(rows, kv_heads, groups * length, dim)
    scores = (stacked @ key.transpose(-1, -2)) * scaling
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    scores = scores.view(rows, kv_heads, groups, length, length).masked_fill(future, float("-inf"))
    weights = torch.softmax(scores, dim=-1).view(rows, kv_heads, groups * length, length)
    return (weights @ value).view(rows, heads, length, dim).transpose(1, 2)


def register() -> str:
    """Make the attention known to transformers; returns the name for ``attn_implementation``."""
    AttentionInterface.register(NAME, grouped_query_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME

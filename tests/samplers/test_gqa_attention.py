"""The sampler's attention against a plain softmax over repeated keys and values."""

from __future__ import annotations

import math

import pytest
import torch

from agent_rl.samplers.gqa_attention import grouped_query_attention


class Layer(torch.nn.Module):
    """What transformers' attention asks of the layer it serves."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups, self.is_causal, self.layer_idx = groups, True, 0


def inputs(length: int, past: int, heads: int, kv_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length + past)
    shapes = [(2, heads, length, 8), (2, kv_heads, past + length, 8), (2, kv_heads, past + length, 8)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """In float64; [B, T, heads, D]."""
    groups = query.shape[1] // key.shape[1]
    query, key, value = (tensor.double() for tensor in (query, key, value))
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return (scores.masked_fill(~mask, -math.inf).softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 1), (3, 3)])
def test_decoding_one_token_a_row(heads: int, kv_heads: int) -> None:
    query, key, value = inputs(1, 9, heads, kv_heads, torch.float32)
    lengths = torch.tensor([4, 10])
    mask = (torch.arange(10)[None] < lengths[:, None])[:, None, None]
    with torch.no_grad():
        out, _ = grouped_query_attention(Layer(heads // kv_heads), query, key, value, mask, scaling=8**-0.5)
    assert torch.allclose(out.double(), plain(query, key, value, mask), atol=1e-6)

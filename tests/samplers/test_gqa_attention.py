"""The project's attention against a plain softmax over repeated keys and values, forward and backward."""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3)])
def test_training_values_and_gradients(dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    tensors = inputs(13, 0, heads, kv_heads, dtype)
    mask = torch.ones(13, 13, dtype=torch.bool).tril()
    out, _ = grouped_query_attention(Layer(heads // kv_heads), *tensors, None, scaling=8**-0.5)
    expected = plain(*tensors, mask)
    pull = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((out.float() * pull).sum(), tensors)
    right = torch.autograd.grad((expected * pull).sum(), tensors)
    tolerance = 1e-5 if dtype is torch.float32 else 0.03
    assert torch.allclose(out.double(), expected, atol=tolerance)
    for name, gradient, wanted in zip("qkv", found, right, strict=True):
        difference = (gradient.double() - wanted.double()).norm() / wanted.double().norm()
        assert difference < tolerance, (name, float(difference))

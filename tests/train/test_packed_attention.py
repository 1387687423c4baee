"""Attention over packed rows against a plain softmax in float64, sequence by sequence."""

from __future__ import annotations

import math

import pytest
import torch

from agent_rl.train import packed_attention as module
from agent_rl.train.packed_attention import Packing, Span, packed_attention

SPANS = [Span(5), Span(4, 0), Span(1, 0), Span(7), Span(3), Span(6, 4)]


def inputs(heads: int, kv_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    length = sum(span.length for span in SPANS)
    shapes = [(1, heads, length, 8), (1, kv_heads, length, 8), (1, kv_heads, length, 8)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def seen_by(length: int) -> torch.Tensor:
    """[T, T] bool: which token sees which."""
    starts = [0]
    for span in SPANS:
        starts.append(starts[-1] + span.length)
    mask = torch.zeros(length, length, dtype=torch.bool)
    for index, span in enumerate(SPANS):
        for place in range(starts[index], starts[index + 1]):
            mask[place, starts[index] : place + 1] = True
            if span.prefix is not None:
                mask[place, starts[span.prefix] : starts[span.prefix + 1]] = True
    return mask


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    query, key, value = (tensor.double() for tensor in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return (scores.masked_fill(~seen_by(query.shape[2]), -math.inf).softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3)])
def test_values_and_gradients(monkeypatch, fused: bool, dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    if fused:  # what longer sequences and a GPU take
        monkeypatch.setattr(module, "PLAIN_MAX_KEYS", 0)
    tensors = inputs(heads, kv_heads, dtype)
    out = packed_attention(*tensors, Packing(SPANS), scaling=8**-0.5, dropout=0.0)
    expected = plain(*tensors)
    pull = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((out.float() * pull).sum(), tensors)
    right = torch.autograd.grad((expected * pull).sum(), tensors)
    tolerance = 1e-5 if dtype is torch.float32 else 0.03
    assert torch.allclose(out.double(), expected, atol=tolerance)
    for name, gradient, wanted in zip("qkv", found, right, strict=True):
        difference = (gradient.double() - wanted.double()).norm() / wanted.double().norm()
        assert difference < tolerance, (name, float(difference))


def test_dropout_is_that_of_the_model() -> None:
    tensors = inputs(4, 2, torch.float32)
    torch.manual_seed(0)
    dropped = packed_attention(*tensors, Packing(SPANS), scaling=1.0, dropout=0.5)
    assert not torch.allclose(dropped, packed_attention(*tensors, Packing(SPANS), scaling=1.0, dropout=0.0))

"""Causal attention over a packed row: sequences one after the other without padding, prompts of a group once.

Matrix products see real tokens alone; only the attention itself goes span by span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# The plain products hold R x C scores of every head; beyond this many keys the fused kernel's memory matters more.
PLAIN_MAX_KEYS = 1024


@dataclass(frozen=True, slots=True)
class Span:
    """``length`` tokens that see each other causally and, before them, all of the earlier span ``prefix``."""

    length: int
    prefix: int | None = None


@dataclass(slots=True)
class Packing:
    """The spans of one packed row, in order. ``layers`` counts the attention layers that went by them."""

    spans: Sequence[Span]
    layers: int = 0
    _hidden: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def hides_the_future(self, groups: int, length: int, seen: int, like: Tensor) -> Tensor:
        """What is added to scores [groups x length, seen]: 0, or -inf where a key comes after its query.

        Every layer wants the same, so it is made once.
        """
        shape = (groups, length, seen)
        if shape not in self._hidden:
            future = torch.ones(length, seen, dtype=torch.bool, device=like.device).triu(seen - length + 1)
            mask = torch.zeros(length, seen, dtype=like.dtype, device=like.device)
            self._hidden[shape] = mask.masked_fill_(future, float("-inf")).repeat(groups, 1)
        return self._hidden[shape]


@torch.compiler.disable  # its spans differ from row to row: a compiled one would be compiled for each
def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, *, scaling: float, dropout: float
) -> Tensor:
    """query [1, heads, T, D], key and value [1, kv_heads, T, D] -> [1, T, heads, D]."""
    packing.layers += 1
    lengths = [span.length for span in packing.spans]
    # split, not slices: the backward pass of each slice would fill a zero tensor of the whole row.
    queries, keys, values = (states[0].split(lengths, dim=1) for states in (query, key, value))
    parts = []
    for index, span in enumerate(packing.spans):
        own_key, own_value = keys[index], values[index]
        if span.prefix is not None:
            own_key = torch.cat((keys[span.prefix], own_key), dim=1)
            own_value = torch.cat((values[span.prefix], own_value), dim=1)
        if query.device.type == "cpu" and own_key.shape[1] <= PLAIN_MAX_KEYS:
            parts.append(_plain(queries[index], own_key, own_value, packing, scaling, dropout))
        else:
            parts.append(_fused(queries[index], own_key, own_value, scaling, dropout))
    return torch.cat(parts, dim=1).transpose(0, 1)[None]


def _plain(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float, dropout: float) -> Tensor:
    """Two matrix products and a softmax: on a CPU the backward pass of torch's fused kernel is slower, for the same
    error. The scores of the query heads that share a key-value head are one matrix.

    query [heads, R, D], key and value [kv_heads, C, D], C - R of them before the queries -> [heads, R, D].
    """
    heads, length, dim = query.shape
    kv_heads, seen, _ = key.shape
    stacked = (query * scaling).reshape(kv_heads, -1, dim)
    mask = packing.hides_the_future(heads // kv_heads, length, seen, query)
    weights = torch.softmax(torch.baddbmm(mask, stacked, key.transpose(-1, -2)), dim=-1)
    weights = torch.nn.functional.dropout(weights, dropout)
    return (weights @ value).view(heads, length, dim)


def _fused(query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float) -> Tensor:
    """torch's kernel. It aligns causal queries with the first keys, and only without a mask it is the fast one: so
    keys before the queries get (unused) queries too. Shapes as above."""
    before = key.shape[1] - query.shape[1]
    if before:
        query = torch.cat((query.new_zeros(query.shape[0], before, query.shape[2]), query), dim=1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None], dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=True
    )
    return out[0, :, before:]

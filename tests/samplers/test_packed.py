"""One pass for everybody: attention over the slab against a plain softmax, row by row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from agent_rl.attention import attention
from agent_rl.errors import ConfigError
from agent_rl.samplers.hf import HFSampler
from agent_rl.samplers.packed import plan_pass
from agent_rl.testing import ToyCodec, tiny_model

DIM = 8


def plain(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [heads, D] of one token that sees all of keys and values [kv_heads, n, D]; float64."""
    groups = query.shape[0] // keys.shape[0]
    keys, values = (tensor.double().repeat_interleave(groups, 0) for tensor in (keys, values))
    scores = torch.einsum("hd,hnd->hn", query.double(), keys) / math.sqrt(DIM)
    return torch.einsum("hn,hnd->hd", scores.softmax(-1), values)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 1), (3, 3)])
@pytest.mark.parametrize(
    ("lengths", "running", "joining"),
    [
        ([4, 9, 1], 3, []),
        ([0, 0], 0, [(0, 5), (1, 1)]),
        ([3, 7, 0, 6, 2], 2, [(2, 4), (3, 3), (4, 1)]),
    ],
)
def test_every_token_sees_its_own_row_up_to_itself(
    heads: int, kv_heads: int, lengths: list[int], running: int, joining: list[tuple[int, int]]
) -> None:
    generator = torch.Generator().manual_seed(heads)
    slab = [torch.randn(len(lengths), kv_heads, 16, DIM, generator=generator) for _ in range(2)]
    plan = plan_pass(lengths, running, joining, torch.device("cpu"))
    places = [(row, lengths[row]) for row in range(running)]
    places += [(row, lengths[row] + n) for row, count in joining for n in range(count)]
    assert plan.positions[0].tolist() == [column for _, column in places]
    query = torch.randn(1, heads, len(places), DIM, generator=generator)
    with torch.no_grad():
        out, _ = attention(torch.nn.Module(), query, *slab, plan.mask, scaling=DIM**-0.5, packed=plan)
    for at, (row, column) in enumerate(places):
        wanted = plain(query[0, :, at], slab[0][row, :, : column + 1], slab[1][row, :, : column + 1])
        assert torch.allclose(out[0, at].double(), wanted, atol=1e-6), (row, column)
    assert [places[at] for at in plan.newest] == [
        *((row, lengths[row]) for row in range(running)),
        *((row, lengths[row] + count - 1) for row, count in joining),
    ]


def test_a_model_with_another_attention_is_refused(codec: ToyCodec) -> None:
    """It would read the slab as if every row were the same turn."""
    model: Any = tiny_model(codec.vocabulary)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ConfigError, match=r"attn_implementation=agent_rl_sdpa, but the model has sdpa"):
        HFSampler(model, codec)


def test_a_layer_that_keeps_the_pass_to_itself_is_an_error() -> None:
    query, slab = torch.zeros(1, 2, 3, DIM), torch.zeros(4, 2, 16, DIM)
    with pytest.raises(RuntimeError, match="does not hand the sampler's pass on"):
        attention(torch.nn.Linear(1, 1), query, slab, slab, None)

"""Extreme probabilities, ratios and empty masks, in float32 and bfloat16: finite, exactly 0 where nothing counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agent_rl.algo.diagnostics import ObjectiveDiagnostics
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import BatchCounts, TokenBatch
from agent_rl.config.schema import AlgoConfig, KLConfig, TokenFilterConfig

from .conftest import make_tokens, select

FLOATS = [torch.float32, torch.bfloat16]


def extremes(dtype: torch.dtype) -> TokenBatch:
    """Every pair of p in {1, .5, 1e-8, 1e-30} with a log-ratio in {0, +-20}, both signs of A."""
    logp = torch.tensor([1.0, 0.5, 1e-8, 1e-30], dtype=torch.float64).log().repeat_interleave(6)
    shift = torch.tensor([0.0, 0.0, 20.0, 20.0, -20.0, -20.0], dtype=torch.float64).repeat(4)
    sequence = torch.arange(24) // 3
    mask = torch.ones(24, dtype=torch.bool)
    return TokenBatch(
        logp=logp.to(dtype, copy=True).requires_grad_(True),
        logp_old=(logp - shift).to(dtype),
        logp_ref=(logp - shift).to(dtype),
        logp_rollout=(logp + shift).to(dtype),
        logit=(logp + 30).to(dtype),
        drawn_weight=torch.full((24,), 0.7, dtype=dtype),
        advantage=torch.tensor([1.5, -1.5] * 12, dtype=dtype),
        mask=mask,
        sequence=sequence,
        group=sequence // 2,
        counts=BatchCounts.of(mask, sequence, sequence // 2),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mismatch", ["none", "token_tis", "sequence_tis", "token_mis", "sequence_mis"])
def test_finite_at_the_extremes(objective: Objective, dtype: torch.dtype, mismatch: str) -> None:
    config = objective.config.model_copy(
        update={"mismatch": objective.config.mismatch.model_copy(update={"kind": mismatch})}
    )
    objective = Objective(config, objective.max_response_tokens)
    for update in objective.passes:
        batch = select(objective, extremes(dtype), update)
        out = objective.loss(batch)
        out.loss.backward()
        assert out.loss.dtype is torch.float32
        assert torch.isfinite(out.loss)
        assert batch.logp.grad is not None
        assert torch.isfinite(batch.logp.grad).all()
        diagnostics = ObjectiveDiagnostics(objective)
        diagnostics.add(batch, out, torch.ones(24))
        assert all(torch.isfinite(torch.tensor(value)) for value in diagnostics.metrics().values())


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_empty_mask_is_exactly_nothing(objective: Objective, dtype: torch.dtype) -> None:
    """huggingface/trl#3248, NVIDIA-NeMo/Automodel#3796: all tokens masked was 0 / 0."""
    batch = extremes(dtype)
    none = torch.zeros_like(batch.mask)
    batch = replace(batch, mask=none, counts=BatchCounts.of(none, batch.sequence, batch.group))
    out = objective.loss(batch)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert batch.logp.grad is not None
    assert (batch.logp.grad == 0).all()
    diagnostics = ObjectiveDiagnostics(objective)
    diagnostics.add(batch, out, torch.ones(24))
    assert diagnostics.metrics() == {}


def test_kl_counts_trained_tokens_alone() -> None:
    """PeterGriffinJin/Search-R1#20, #21: averaged over retrieved tokens the KL explodes (2.06 for 0.1)."""
    mask = torch.tensor([True, True, False, False, True])
    zeros = torch.zeros(5, dtype=torch.long)
    half_square = torch.tensor([0.1, 0.1, 5.0, 5.0, 0.1], dtype=torch.float64)
    batch = TokenBatch(
        logp=torch.full((5,), -1.0, dtype=torch.float64, requires_grad=True),
        logp_old=torch.full((5,), -1.0, dtype=torch.float64),
        logp_ref=-1.0 + (2 * half_square).sqrt(),
        advantage=torch.zeros(5, dtype=torch.float64),
        mask=mask,
        sequence=zeros,
        group=zeros,
        counts=BatchCounts.of(mask, zeros, zeros),
    )
    objective = Objective(AlgoConfig(kl=KLConfig(beta=1.0, estimator="k2")))
    assert objective.loss(batch).loss.item() == pytest.approx(0.1)


def test_a_masked_sequence_leaves_numerator_and_denominator() -> None:
    """huggingface/trl#6439: 4 tokens of loss 1 and 6 masked ones have the token mean 1.0, not 0.4."""
    mask = torch.tensor([True] * 4 + [False] * 6)
    sequence = torch.tensor([0] * 4 + [1] * 6)
    batch = TokenBatch(
        logp=torch.full((10,), -1.0, requires_grad=True),
        logp_old=torch.full((10,), -1.0),
        advantage=torch.full((10,), -1.0),
        mask=mask,
        sequence=sequence,
        group=sequence,
        counts=BatchCounts.of(mask, sequence, sequence),
    )
    assert Objective(AlgoConfig(kl=KLConfig(beta=0.0))).loss(batch).loss.item() == pytest.approx(1.0)


def test_tokens_without_a_choice_have_no_gradient() -> None:
    """The KL of a token that the filter leaves out is left out too."""
    objective = Objective(AlgoConfig(token_filter=TokenFilterConfig(kind="low_then_high", eta=0.3)))
    for update in objective.passes:
        batch = select(objective, make_tokens([9, 9, 9]), update)
        objective.loss(batch).loss.backward()
        assert batch.logp.grad is not None
        assert (batch.logp.grad[~batch.selected] == 0).all()  # type: ignore[operator]
        assert (batch.logp.grad[batch.selected & batch.mask] != 0).any()  # type: ignore[operator]

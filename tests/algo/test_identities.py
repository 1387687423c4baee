"""Identities between members of the family, by which a wrong sign or a wrong place of w shows itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algo.advantages import group_advantages
from agent_rl.algo.kl import kl_term
from agent_rl.algo.mismatch import mismatch_correction
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import BatchCounts, TokenBatch
from agent_rl.algo.weights import constant_weight_warning, probability_weight, token_weight
from agent_rl.config.schema import AlgoConfig, KLConfig, MismatchConfig, TokenWeightConfig

from .conftest import make_tokens

LENGTHS = [5, 3, 9, 1, 4, 7, 2, 6]
PROBABILITY = TokenWeightConfig(kind="probability")


def loss_and_gradient(config: AlgoConfig, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
    out = Objective(config, max_response_tokens=12).loss(batch)
    (gradient,) = torch.autograd.grad(out.loss, batch.logp)
    return out.loss.detach(), gradient


def assert_same(first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


def test_the_letter_is_grpo(preset) -> None:
    """Eq. 9 to 11 as printed weigh every token 1: GRPO with the group's token mean."""
    batch = make_tokens(LENGTHS)
    literal = loss_and_gradient(preset("tr_grpo_literal"), batch)
    assert_same(literal, loss_and_gradient(preset("grpo", "aggregate=group_token_mean"), batch))
    assert constant_weight_warning(preset("tr_grpo_literal").token_weight) is not None
    assert constant_weight_warning(preset("tr_grpo").token_weight) is None


def test_tau_of_the_papers_table_7(preset) -> None:
    """tau = 0.5 is constant too under the multiply reading: 0.39, as for GRPO."""
    assert "constant 1" in (constant_weight_warning(preset("tr_grpo", "token_weight.tau=0.5").token_weight) or "")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(deadline=None)
def test_reverse_and_weight_make_two(probs: list[float]) -> None:
    prob = torch.tensor(probs, dtype=torch.float64)
    reverse = token_weight(TokenWeightConfig(kind="reverse"), prob)
    torch.testing.assert_close(reverse + probability_weight(PROBABILITY, prob), torch.full_like(prob, 2.0))


def test_where_the_weight_rises_and_saturates() -> None:
    """w > 1 iff p > ln 3 / 9, w = 1.4 iff p > ln 19 / 9."""
    prob = torch.tensor([0.1220, 0.1221, 0.3271, 0.3272], dtype=torch.float64)
    weight = probability_weight(PROBABILITY, prob)
    assert weight[0] == 1
    assert weight[1] > 1
    assert weight[2] < 1.4
    assert weight[3] == 1.4


def test_kl_inside_and_outside_differ_by_w_minus_one() -> None:
    """d Eq. 12 - d Eq. 10 = beta (w rho - w) - beta (w rho - 1), up to the sign: beta (w - 1) d logp."""
    batch = make_tokens(LENGTHS)
    weight = probability_weight(PROBABILITY, batch.logp.detach().exp())
    gradients = {}
    for weighting in ("outside", "inside"):
        term = kl_term(batch.logp, batch.logp_ref, weight, estimator="k3", weighting=weighting, clamp=None)
        (gradients[weighting],) = torch.autograd.grad(term.sum(), batch.logp)
    torch.testing.assert_close(gradients["outside"] - gradients["inside"], weight - 1, rtol=1e-9, atol=1e-12)


def test_the_same_through_the_whole_objective(preset) -> None:
    batch = make_tokens(LENGTHS)
    beta, outside = 0.25, preset("tr_grpo", "kl.beta=0.25")
    inside = preset("tr_grpo", "kl.beta=0.25", "kl.weighting=inside")
    difference = loss_and_gradient(outside, batch)[1] - loss_and_gradient(inside, batch)[1]
    weight = Objective(outside).weights(batch)
    expected = torch.where(batch.mask, beta * (weight - 1) / batch.counts.tokens, 0.0)
    torch.testing.assert_close(difference, expected, rtol=1e-9, atol=1e-12)


def test_gspo_of_single_tokens_is_grpos_ratio(preset) -> None:
    batch = make_tokens([1] * 12)
    clips = ("kl.beta=0", "clip_low=0.2", "clip_high=0.24", "aggregate=token_mean")
    assert_same(loss_and_gradient(preset("gspo", *clips), batch), loss_and_gradient(preset("grpo", "kl.beta=0"), batch))


def test_constant_length_scales_with_its_constant(preset) -> None:
    batch = make_tokens(LENGTHS)
    loss, gradient = loss_and_gradient(preset("dr_grpo", "constant_length_tokens=10"), batch)
    assert_same((loss / 4, gradient / 4), loss_and_gradient(preset("dr_grpo", "constant_length_tokens=40"), batch))
    # Not given, it is the run's limit (12 here).
    assert_same((loss * 10 / 12, gradient * 10 / 12), loss_and_gradient(preset("dr_grpo"), batch))


@pytest.mark.parametrize("kind", ["group_norm", "group_mean", "rloo"])
@given(st.floats(-1e6, 1e6), st.integers(2, 9))
@settings(deadline=None, max_examples=30)
def test_a_uniform_group_is_exactly_zero(kind: str, reward: float, size: int) -> None:
    found = group_advantages([reward] * size + [0.0, 1.0], [0] * size + [1, 1], kind=kind)
    assert (found[:size] == 0).all()
    assert (found[size:] != 0).all()


def test_group_ids_decide_and_not_places() -> None:
    """PeterGriffinJin/Search-R1#88, #39: ids [p, q, p, q] with rewards [1, 0, 0, 1]."""
    found = group_advantages([1, 0, 0, 1], ["p", "q", "p", "q"], kind="group_mean")
    assert found.tolist() == [0.5, -0.5, -0.5, 0.5]


def test_reinforce_has_the_policy_gradient(preset) -> None:
    """At ratio 1 PPO's clip and REINFORCE have the same gradient: -A, shared out."""
    batch = make_tokens(LENGTHS)
    batch = replace(batch, logp_old=batch.logp.detach())
    same = ("kl.beta=0", "aggregate=token_mean")
    first = loss_and_gradient(preset("rloo", *same), batch)[1]
    torch.testing.assert_close(first, loss_and_gradient(preset("grpo", *same), batch)[1])
    assert float(first.abs().sum()) > 0


@given(st.integers(0, 10_000), st.integers(2, 60), st.floats(0.1, 20))
@settings(deadline=None, max_examples=60)
def test_the_factor_of_theorem_3_1(seed: int, vocabulary: int, scale: float) -> None:
    """|d log pi / d logits| lies between 1 - p and sqrt(2) (1 - p): rare tokens pull hardest."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(vocabulary, generator=generator, dtype=torch.float64)).requires_grad_(True)
    token = int(torch.randint(vocabulary, (), generator=generator))
    logp = torch.log_softmax(logits, -1)[token]
    (gradient,) = torch.autograd.grad(logp, logits)
    rest = 1 - float(logp.detach().exp())
    assert rest * (1 - 1e-9) - 1e-12 <= float(gradient.norm()) <= 2**0.5 * rest * (1 + 1e-9) + 1e-12


def test_truncated_and_masked_importance_sampling() -> None:
    ratios = torch.tensor([0.5, 1.5, 3.0, 0.5, 1.5, 1.2], dtype=torch.float64)
    sequence, mask = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([True] * 5 + [False])
    old = ratios.log()

    def found(kind: str) -> list[float]:
        made = mismatch_correction(MismatchConfig(kind=kind), old, torch.zeros_like(old), mask, sequence)
        return made[:5].tolist()

    assert found("none") == [1.0] * 5
    assert found("token_tis") == pytest.approx([0.5, 1.5, 2.0, 0.5, 1.5])
    assert found("token_mis") == pytest.approx([0.5, 1.5, 0.0, 0.5, 1.5])
    assert found("sequence_tis") == pytest.approx([2.0] * 3 + [0.75] * 2)  # 2.25 is cut; the masked token is not in
    assert found("sequence_mis") == pytest.approx([0.0] * 3 + [0.75] * 2)


def test_the_correction_scales_the_policy_term_alone() -> None:
    batch = make_tokens(LENGTHS)
    batch = replace(batch, logp_rollout=batch.logp_old - 0.5)
    plain = Objective(AlgoConfig(kl=KLConfig(beta=0.5))).loss(batch)
    corrected = Objective(AlgoConfig(kl=KLConfig(beta=0.5), mismatch=MismatchConfig(kind="token_tis"))).loss(batch)
    torch.testing.assert_close(corrected.policy_term, plain.policy_term * torch.tensor(0.5).double().exp())
    torch.testing.assert_close(corrected.kl_term, plain.kl_term)


def test_counts_are_those_of_the_mask() -> None:
    """Weights are in no denominator: doubling every weight doubles the policy term."""
    batch = make_tokens(LENGTHS)
    config = AlgoConfig(token_weight=TokenWeightConfig(kind="random"), kl=KLConfig(beta=0.0))
    once = Objective(config).loss(batch).loss
    assert batch.drawn_weight is not None
    twice = Objective(config).loss(replace(batch, drawn_weight=2 * batch.drawn_weight)).loss
    torch.testing.assert_close(twice, 2 * once)
    counts = BatchCounts.of(batch.mask, batch.sequence, batch.group)
    assert counts.tokens == int(batch.mask.sum())

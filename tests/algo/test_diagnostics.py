"""The metrics show the mechanism: dead tokens, clips by sign, gradient shares, bounds of w."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agent_rl.algo.diagnostics import ObjectiveDiagnostics
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import TokenBatch

from .conftest import make_tokens, select

LENGTHS = [8] * 40


def seen(objective: Objective, batch: TokenBatch) -> dict[str, float]:
    diagnostics = ObjectiveDiagnostics(objective)
    diagnostics.add(batch, objective.loss(batch), torch.ones(len(batch.logp)))
    return diagnostics.metrics()


def on_policy(**changes) -> TokenBatch:
    batch = make_tokens(LENGTHS, **changes)
    return replace(batch, logp_old=batch.logp.detach(), logp_ref=batch.logp.detach())


def test_eq9_kills_likely_tokens_of_good_responses(preset) -> None:
    """At ratio 1, w > 1.24 is outside the clip: every A > 0 token with p > 0.2112 is dead; tr_grpo loses none."""
    batch = on_policy()
    good = batch.mask & (batch.advantage > 0)
    expected = float((batch.logp.detach().exp()[good] > 0.2112).double().mean())
    assert expected > 0.1
    assert seen(Objective(preset("tr_grpo_eq9")), batch)["objective/dead_positive_fraction"] == pytest.approx(expected)
    assert seen(Objective(preset("tr_grpo")), batch)["objective/dead_positive_fraction"] == 0
    assert seen(Objective(preset("tr_grpo_eq9")), batch)["objective/clip_fraction_neg"] == 0


def test_dead_tokens_have_no_gradient_and_others_do(objective: Objective) -> None:
    for update in objective.passes:
        batch = select(objective, make_tokens(LENGTHS), update)
        out = objective.loss(batch)
        slope = objective.policy_slope(batch, out)
        config = objective.config.model_copy(update={"kl": objective.config.kl.model_copy(update={"beta": 0.0})})
        Objective(config, 12).loss(batch).loss.backward()
        assert batch.logp.grad is not None
        assert ((batch.logp.grad == 0) == (slope == 0)).all()


def test_weights_move_gradient_to_likely_tokens(preset) -> None:
    batch = on_policy()
    shares = {name: seen(Objective(preset(name)), batch) for name in ("grpo", "tr_grpo", "tr_grpo_reverse", "ar")}
    names = ["p0_0.1", "p0.1_0.3", "p0.3_0.7", "p0.7_0.9", "p0.9_1"]
    for found in shares.values():
        assert sum(found[f"objective/grad_share_{name}"] for name in names) == pytest.approx(1)
    rare = {name: found["objective/grad_share_p0_0.1"] for name, found in shares.items()}
    assert rare["tr_grpo"] < rare["grpo"] < rare["tr_grpo_reverse"]
    assert rare["ar"] < rare["grpo"]


def test_shares_of_the_bounds(preset) -> None:
    batch = on_policy()
    prob = batch.logp.detach().exp()[batch.mask]
    found, reverse = (seen(Objective(preset(name)), batch) for name in ("tr_grpo", "tr_grpo_reverse"))
    assert found["weight/at_lower"] == pytest.approx(float((prob <= 0.12206).double().mean()), abs=1e-3)
    assert found["weight/at_upper"] == pytest.approx(float((prob >= 0.32716).double().mean()), abs=1e-3)
    assert reverse["weight/at_lower"] == pytest.approx(found["weight/at_upper"])
    assert reverse["weight/at_upper"] == pytest.approx(found["weight/at_lower"])


def test_mismatch_is_seen_before_and_after_the_correction(preset) -> None:
    batch = make_tokens(LENGTHS)
    batch = replace(batch, logp_rollout=batch.logp_old - torch.linspace(-1, 1, len(batch.logp)))
    found = seen(Objective(preset("grpo", "mismatch.kind=token_tis", "mismatch.cap=1.5")), batch)
    assert found["mismatch/correction_max"] == pytest.approx(1.5)
    assert 0.2 < found["mismatch/correction_bounded_fraction"] < 0.4  # log 1.5 = 0.405 of [-1, 1]
    masked = seen(Objective(preset("grpo", "mismatch.kind=token_mis", "mismatch.cap=1.5")), batch)
    assert masked["mismatch/correction_bounded_fraction"] == pytest.approx(
        found["mismatch/correction_bounded_fraction"]
    )
    assert masked["objective/dead_positive_fraction"] > 0.2


def test_filters_show_what_they_chose(preset) -> None:
    objective = Objective(preset("high_entropy", "overlong=null"))
    found = seen(objective, select(objective, make_tokens(LENGTHS), "all"))
    assert found["filter/selected_fraction"] == pytest.approx(0.2, abs=0.01)
    lopti = Objective(preset("lopti"))
    low, high = (seen(lopti, select(lopti, make_tokens(LENGTHS), update)) for update in lopti.passes)
    assert low["filter/selected_prob"] < 0.5 < high["filter/selected_prob"]
    assert low["filter/selected_fraction"] + high["filter/selected_fraction"] == pytest.approx(1)

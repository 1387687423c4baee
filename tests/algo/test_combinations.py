"""Any part can be swapped; a combination without meaning is refused with the reason."""

from __future__ import annotations

import pytest

from agent_rl.algo.explain import curve_lines, formula, start_line
from agent_rl.algo.objective import Objective
from agent_rl.algo.overlong import overlong_penalty
from agent_rl.config.compose import compose
from agent_rl.config.schema import OverlongConfig
from agent_rl.errors import ConfigError

from .conftest import make_tokens, select


@pytest.mark.parametrize("surrogate", ["clip", "gspo", "cispo"])
@pytest.mark.parametrize("weight", ["none", "probability", "reverse", "random", "linear"])
@pytest.mark.parametrize("aggregate", ["token_mean", "group_token_mean", "sequence_mean", "constant_length"])
def test_parts_compose(preset, surrogate: str, weight: str, aggregate: str) -> None:
    config = preset(
        "grpo", f"surrogate={surrogate}", f"token_weight.kind={weight}", f"aggregate={aggregate}", "overlong={}"
    )
    objective = Objective(config, max_response_tokens=12)
    batch = select(objective, make_tokens([4, 2, 3, 3]), "all")
    out = objective.loss(batch)
    out.loss.backward()
    assert batch.logp.grad is not None
    assert (batch.logp.grad[batch.mask] != 0).any()
    assert any("w " in line for line in formula(config)) == (weight != "none")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["algo=grpo", "algo.clip_on=weighted_ratio"], "clip_on=weighted_ratio needs a token_weight"),
        (["algo=grpo", "algo.kl.weighting=outside"], "kl.weighting needs a token_weight"),
        (["algo=tr_grpo", "algo.kl.weighting=inside", "algo.kl.estimator=k2"], "defined for kl.estimator=k3 only"),
        (["algo=tr_grpo_eq9", "algo.token_weight.lower=0"], "needs weights above 0, but token_weight.lower=0"),
        (["algo=grpo", "algo.token_weight.tau=5"], "tau=5.0 has no effect with kind=none"),
        (["algo=ar", "algo.token_weight.upper=2"], "upper=2.0 has no effect with kind=linear"),
        (["algo=tr_grpo", "algo.token_weight.lower=2"], "lower=2.0 is above upper=1.4"),
        (["algo=grpo", "algo.constant_length_tokens=100"], "has no effect with aggregate=token_mean"),
        (["algo=grpo", "algo.clip_low=null"], "surrogate=clip needs a lower bound"),
        (["algo=gspo", "algo.dual_clip=3"], "dual_clip=3.0 has no effect with surrogate=gspo"),
        (["algo=rloo", "algo.clip_high=0.3"], "clip_high=0.3 has no effect with surrogate=reinforce"),
        (["algo=rloo", "train.updates_per_rollout=2"], "reinforce has no ratio to correct for that"),
        (["algo=lopti", "algo.surrogate=reinforce"], "low_then_high updates twice on one rollout"),
        (["algo=grpo", "algo.mismatch.cap=3"], "cap=3.0 has no effect with kind=none"),
        (["algo=grpo", "algo.token_filter.eta=0.3"], "eta=0.3 has no effect with kind=all"),
        (["algo=grpo", "algo.group_filter.max_refills=9"], "max_refills=9 has no effect with kind=keep"),
        (["algo=rloo", "rollout.group_size=1", "rollout.min_group=1"], "one reward has nothing to be compared with"),
        (
            ["algo=reinforce_pp", "algo.group_filter.kind=drop_uniform", "rollout.group_size=1", "rollout.min_group=1"],
            "every group of one is uniform",
        ),
    ],
)
def test_without_meaning_is_refused(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match="1 fault") as caught:
        compose("train", overrides)
    assert reason in str(caught.value)


def test_a_group_of_one_may_be_whitened_over_the_step() -> None:
    compose("train", ["algo=reinforce_pp", "rollout.group_size=1", "rollout.min_group=1"])


def test_every_preset_is_explained(preset, preset_name: str) -> None:
    config = preset(preset_name)
    assert config.name == preset_name
    line = start_line(config)
    assert line.startswith(f"objective {preset_name}: -")
    if preset_name.startswith(("tr_grpo", "grpo_sg")) and config.token_weight.sigmoidal:
        assert "to the letter" in line
        assert "tr_grpo_literal" in line
    text = "\n".join(formula(config))
    assert f"clip({config.token_weight.alpha:g}" in text or not config.token_weight.sigmoidal
    if config.kl.beta:
        assert f"{config.kl.beta:g} " in text
    curve = curve_lines(config)
    assert bool(curve) == (config.token_weight.kind != "none")
    assert (preset_name == "tr_grpo_literal") == any("constant 1" in line for line in curve)


def test_numbers_of_the_command_line_are_in_the_formula(preset) -> None:
    text = "\n".join(formula(preset("tr_grpo", "token_weight.tau=7", "clip_high=0.3", "kl.beta=0.02")))
    assert "sigmoid(7 p)" in text
    assert "1.3)" in text
    assert "0.02 w (rho - log rho - 1)" in text


def test_soft_overlong_punishment() -> None:
    """DAPO: 0 up to L - buffer, linear to -1 at L."""
    config = OverlongConfig(buffer_fraction=0.2)
    assert [overlong_penalty(config, n, 100) for n in (0, 80, 90, 100, 130)] == pytest.approx([0, 0, -0.5, -1, -1])

"""Losses, per-token terms and gradients against independent values (float64, finite differences).

The table itself is shared reference data, not part of the project; `test_reference_numbers` repeats enough of
it by hand to fail on a flipped sign where the table is absent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch

from agent_rl.algo.objective import Objective
from agent_rl.algo.records import BatchCounts, TokenBatch
from agent_rl.algo.weights import probability_weight
from agent_rl.config.compose import compose
from agent_rl.config.schema import AlgoConfig, KLConfig, RunConfig, TokenWeightConfig

VECTORS = Path(__file__).parents[3] / "shared" / "spec" / "vectors.json"
RTOL = 1e-9

INPUTS = {
    "group": [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
    "resp": [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4],
    "mask": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1],
    "p": [0.97, 0.15, 0.24, 0.62, 0.003, 0.9995, 0.05, 0.3, 0.88, 0.00001, 0.2, 0.45, 0.5, 0.0001],
    "p_old": [
        *(0.95098, 1 / 9, 0.258064516, 0.62, 0.0042857142857, 0.999, 0.03125),
        *(0.4, 0.8, 3.333e-6, 0.173913043, 0.529411765, 0.8333333333, 0.0000833333),
    ],
}


def load_vectors() -> dict:
    if not VECTORS.is_file():
        pytest.skip(f"reference values {VECTORS} are not here; test_reference_numbers still checks the losses")
    return json.loads(VECTORS.read_text())


def make_batch(inputs: dict) -> TokenBatch:
    def double(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    mask = torch.tensor(inputs["mask"]).bool()
    sequence, group = torch.tensor(inputs["resp"]), torch.tensor(inputs["group"])
    return TokenBatch(
        logp=double(inputs["logp"]).requires_grad_(True),
        logp_old=double(inputs["logp_old"]),
        logp_ref=double(inputs["logp_ref"]),
        logit=double(inputs["logit"]),
        advantage=double(inputs["A"]),
        mask=mask,
        sequence=sequence,
        group=group,
        counts=BatchCounts.of(mask, sequence, group),
    )


WEIGHTS = {
    "equal": TokenWeightConfig(kind="none"),
    "random": TokenWeightConfig(kind="random"),
    "reverse": TokenWeightConfig(kind="reverse"),
    "tr_multiply": TokenWeightConfig(kind="probability", form="multiply"),
    "tr_divide": TokenWeightConfig(kind="probability", form="divide"),
    "tr_raw_logit": TokenWeightConfig(kind="probability", form="raw_logit"),
    "ar_linear_0.2": TokenWeightConfig(kind="linear", linear_a=0.2, prob="old"),
}

# Cases that are a preset as it stands; the aggregate of dr_grpo divides by the run's limit, 8 in the table.
PRESETS = {
    "grpo|token_mean|beta=0.001": "grpo",
    "equal|ratio|kl_none|token_mean|beta=0.001": "tr_grpo_equal",
    "random|ratio|kl_outside|token_mean|beta=0.001": "tr_grpo_random",
    "reverse|ratio|kl_outside|token_mean|beta=0.001": "tr_grpo_reverse",
    "tr_multiply|ratio|kl_outside|token_mean|beta=0.001": "tr_grpo",
    "tr_multiply|weighted_ratio|kl_inside|group_token_mean|beta=0.001": "tr_grpo_eq9",
    "tr_divide|weighted_ratio|kl_inside|group_token_mean|beta=0.001": "tr_grpo_literal",
    "ar_linear_0.2|ratio|kl_none|token_mean|beta=0.001": "ar",
    "dapo|token_mean|beta=0.0": "dapo",
}


def config_of(case: dict) -> AlgoConfig:
    """The algorithm of a case by its own fields. Clipping and KL of equal weights are the unweighted ones."""
    aggregate, weighted = case.get("aggregate", "token_mean"), case["weight"] != "equal"
    return AlgoConfig(
        token_weight=WEIGHTS[case["weight"]],
        clip_on=case["clip_on"] if weighted else "ratio",
        clip_high=case.get("eps_h", 0.24),
        dual_clip=case.get("dual_c"),
        kl=KLConfig(beta=case["beta"], weighting=case.get("kl_weighting", "none") if weighted else "none"),
        aggregate=aggregate,
        constant_length_tokens=8 if aggregate == "constant_length" else None,
    )


def preset(name: str, *overrides: str) -> AlgoConfig:
    return cast("RunConfig", compose("train", [f"algo={name}", *overrides])).algo


def case_names() -> list[str]:
    return list(json.loads(VECTORS.read_text())["cases"]) if VECTORS.is_file() else ["absent"]


def check(config: AlgoConfig, case: dict, vectors: dict) -> None:
    batch = make_batch(vectors["inputs"])
    batch.drawn_weight = torch.tensor(vectors["weights"]["random"], dtype=torch.float64)
    out = Objective(config, max_response_tokens=8).loss(batch)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(case["loss"], rel=RTOL, abs=1e-15)
    if "token_loss" in case:
        expected = torch.tensor(case["token_loss"], dtype=torch.float64)
        torch.testing.assert_close(out.token_loss, torch.where(batch.mask, expected, 0.0), rtol=RTOL, atol=1e-12)
    gradient = torch.tensor(case["dloss_dlogp"], dtype=torch.float64)
    assert batch.logp.grad is not None
    torch.testing.assert_close(batch.logp.grad, gradient, rtol=RTOL, atol=1e-12)
    assert (batch.logp.grad[~batch.mask] == 0).all()
    assert (out.token_loss[~batch.mask] == 0).all()


@pytest.mark.parametrize("name", case_names())
def test_case(name: str) -> None:
    vectors = load_vectors()
    case = vectors["cases"][name]
    check(config_of(case), case, vectors)


@pytest.mark.parametrize("name", PRESETS)
def test_case_by_its_preset(name: str) -> None:
    vectors = load_vectors()
    check(preset(PRESETS[name]), vectors["cases"][name], vectors)


def test_constant_length_by_the_dr_grpo_preset() -> None:
    """The table clips at 0.24 and normalises by the std where the preset does not."""
    vectors = load_vectors()
    config = preset("dr_grpo", "algo.clip_high=0.24")
    check(config, vectors["cases"]["dr_grpo_agg(max_len=8)|beta=0.0"], vectors)


@pytest.mark.parametrize("name", ["gspo", "cispo"])
def test_other_surrogates_by_their_presets(name: str) -> None:
    vectors = load_vectors()
    check(preset(name), vectors["other"][name], vectors)


@pytest.mark.parametrize("form", ["multiply", "divide", "raw_logit"])
def test_raw_weights_and_bounds(form: str) -> None:
    vectors = load_vectors()
    prob = torch.tensor(vectors["inputs"]["logp"], dtype=torch.float64).exp()
    logit = torch.tensor(vectors["inputs"]["logit"], dtype=torch.float64)
    open_bounds = TokenWeightConfig(kind="probability", form=form, lower=-9, upper=9)
    expected = torch.tensor(vectors["raw_weights"][form], dtype=torch.float64)
    torch.testing.assert_close(probability_weight(open_bounds, prob, logit), expected, rtol=RTOL, atol=0)


def test_curve_of_the_weight() -> None:
    curve = load_vectors()["curve"]
    prob = torch.tensor(curve["p"], dtype=torch.float64)
    for name, expected in curve.items():
        if name == "p" or "raw" in name:
            continue
        form, tau = name.split(" tau=")
        config = TokenWeightConfig(kind="probability", form=form, tau=float(tau))
        torch.testing.assert_close(
            probability_weight(config, prob), torch.tensor(expected, dtype=torch.float64), rtol=RTOL, atol=0
        )


def test_advantage_cases() -> None:
    for case in load_vectors()["advantage_cases"].values():
        rewards = case["rewards"]
        ids = [0] * len(rewards)
        for key, kind, ddof in (
            ("std_ddof1", "group_norm", 1),
            ("std_ddof0", "group_norm", 0),
            ("no_std", "group_mean", 1),
            ("rloo", "rloo", 1),
            ("std_ddof1", "reinforce_pp", 1),  # one group is the whole batch
        ):
            found = Objective(AlgoConfig(advantage=kind, std_ddof=ddof)).advantages(rewards, ids)
            torch.testing.assert_close(found, torch.tensor(case[key], dtype=torch.float64), rtol=RTOL, atol=1e-15)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AlgoConfig(), -0.008027235853),
        (AlgoConfig(token_weight=WEIGHTS["tr_divide"]), -0.008027235853),
        (
            AlgoConfig(token_weight=WEIGHTS["tr_multiply"], kl=KLConfig(weighting="outside")),
            -0.039274988268,
        ),
        (
            AlgoConfig(token_weight=WEIGHTS["tr_multiply"], clip_on="weighted_ratio", kl=KLConfig(weighting="inside")),
            0.008448854714,
        ),
    ],
)
def test_reference_numbers(config: AlgoConfig, expected: float) -> None:
    """The four losses of the written table, from probabilities rounded by hand: 6 digits, any sign matters."""
    ref = [0.9603, 0.195, 0.192, 0.62, 0.0075, 0.9997, 0.03, 0.33, 0.836, 0.00005, 0.21, 0.405, 0.1, 0.00017]
    batch = make_batch(
        {
            **INPUTS,
            "logp": torch.tensor(INPUTS["p"], dtype=torch.float64).log().tolist(),
            "logp_old": torch.tensor(INPUTS["p_old"], dtype=torch.float64).log().tolist(),
            "logp_ref": torch.tensor(ref, dtype=torch.float64).log().tolist(),
            "logit": [0.0] * 14,
            "A": Objective(config).advantages([3, -0.5, -3, 1, -1], [0, 0, 0, 1, 1])[INPUTS["resp"]].tolist(),
        }
    )
    assert Objective(config).loss(batch).loss.item() == pytest.approx(expected, rel=1e-5)

"""Losses, per-token terms and gradients against independent values (float64, finite differences).

The table itself is shared reference data, not part of the project; `test_reference_numbers` repeats enough of
it by hand to fail on a flipped sign where the table is absent.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agent_rl.algo.objective import Objective
from agent_rl.algo.records import BatchCounts, TokenBatch
from agent_rl.algo.weights import probability_weight
from agent_rl.config.schema import AlgoConfig, KLConfig, TokenWeightConfig

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
    "tr_multiply": TokenWeightConfig(kind="probability", form="multiply"),
    "tr_divide": TokenWeightConfig(kind="probability", form="divide"),
    "tr_raw_logit": TokenWeightConfig(kind="probability", form="raw_logit"),
}


def config_of(name: str, case: dict) -> AlgoConfig | None:
    """The algorithm of a case by its own fields; None for parts that another issue brings."""
    if case["weight"] not in WEIGHTS:
        return None
    aggregate = case.get("aggregate", "token_mean")
    weighting = case.get("kl_weighting", "none")
    return AlgoConfig(
        token_weight=WEIGHTS[case["weight"]],
        clip_on=case["clip_on"] if case["weight"] != "equal" else "ratio",
        clip_high=case.get("eps_h", 0.24),
        dual_clip=case.get("dual_c"),
        kl=KLConfig(beta=case["beta"], weighting=weighting if case["weight"] != "equal" else "none"),
        aggregate=aggregate,
        constant_length_tokens=8 if aggregate == "constant_length" else None,
    )


def case_names() -> list[str]:
    if not VECTORS.is_file():
        return ["absent"]
    cases = json.loads(VECTORS.read_text())["cases"]
    return [name for name, case in cases.items() if case["weight"] in WEIGHTS]


@pytest.mark.parametrize("name", case_names())
def test_case(name: str) -> None:
    vectors = load_vectors()
    case = vectors["cases"][name]
    config = config_of(name, case)
    assert config is not None
    batch = make_batch(vectors["inputs"])
    out = Objective(config).loss(batch)
    out.loss.backward()
    mask = batch.mask
    expected = torch.tensor(case["token_loss"], dtype=torch.float64)
    torch.testing.assert_close(out.loss.item(), case["loss"], rtol=RTOL, atol=1e-15)
    torch.testing.assert_close(out.token_loss, torch.where(mask, expected, 0.0), rtol=RTOL, atol=1e-12)
    gradient = torch.tensor(case["dloss_dlogp"], dtype=torch.float64)
    assert batch.logp.grad is not None
    torch.testing.assert_close(batch.logp.grad, gradient, rtol=RTOL, atol=1e-12)
    assert (batch.logp.grad[~mask] == 0).all()


def test_most_cases_are_covered() -> None:
    vectors = load_vectors()
    assert len(case_names()) >= 0.6 * len(vectors["cases"])


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

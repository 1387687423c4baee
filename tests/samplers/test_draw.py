"""Drawing: the right distribution, the right log-probabilities, and never a token that cannot come."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.samplers.draw import draw

ALMOST_ONE = 1 - 2**-53  # the largest number that random.random() gives; 1.0 in float32


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_distribution(temperature: float) -> None:
    logits = torch.tensor([1.5, -0.5, 0.0, 2.0, -3.0, 1.0])
    count, rng = 20_000, random.Random(3)
    ids, _ = draw(logits.expand(count, -1), [temperature] * count, [rng.random() for _ in range(count)])
    observed = torch.bincount(torch.tensor(ids), minlength=6).double()
    expected = torch.softmax(logits.double() / temperature, dim=0) * count
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 20.5  # 99.9 % quantile at 5 degrees of freedom


@given(
    st.lists(st.lists(st.floats(-30, 30, width=32), min_size=5, max_size=5), min_size=1, max_size=4),
    st.floats(0.1, 3.0),
    st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=60, deadline=None)
def test_logprob_is_that_of_the_drawn_token(rows: list[list[float]], temperature: float, uniform: float) -> None:
    ids, logprobs = draw(torch.tensor(rows), [temperature] * len(rows), [uniform] * len(rows))
    for row, token, logprob in zip(rows, ids, logprobs, strict=True):
        expected = torch.log_softmax(torch.tensor(row).double() / temperature, dim=0)[token]
        assert logprob == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("uniform", [0.0, 1e-45, 0.5, 1 - 2**-24, 1 - 2**-25, ALMOST_ONE])
@pytest.mark.parametrize("size", [4, 3000])
def test_impossible_tokens_are_never_drawn(uniform: float, size: int) -> None:
    """At both ends of the vocabulary, where rounding of the uniform or of the sum could reach them."""
    logits = torch.full((1, size), -math.inf)
    logits[0, 1 : size - 1] = torch.linspace(-1, 1, size - 2)
    ids, logprobs = draw(logits, [1.0], [uniform])
    assert 1 <= ids[0] < size - 1
    assert math.isfinite(logprobs[0])


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_a_draw_never_falls_beyond_the_end(uniform: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 50, generator=generator) * 10
    logits[:, 40:] = -1e4
    ids, _ = draw(logits, [1.0] * 3, [uniform, ALMOST_ONE, 1 - 2**-24])
    assert max(ids) < 40


@pytest.mark.parametrize("size", [255, 256, 257, 1000])
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(size: int) -> None:
    """Tokens are summed in blocks before they are searched; here there is one, just one, and several."""
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(size)) * 2
    cumulative = torch.softmax(logits[0].double(), dim=0).cumsum(0)
    uniforms = [(n + 0.5) / 400 for n in range(400)]
    ids, _ = draw(logits.expand(400, -1), [1.0] * 400, uniforms)
    for uniform, token in zip(uniforms, ids, strict=True):
        below = float(cumulative[token - 1]) if token else 0.0
        assert below - 1e-5 <= uniform < float(cumulative[token]) + 1e-5


def test_the_ends_of_the_unit_interval_are_the_ends_of_the_vocabulary() -> None:
    ids, _ = draw(torch.zeros(2, 7), [1.0, 1.0], [0.0, ALMOST_ONE])
    assert ids == [0, 6]


def test_rows_have_their_own_temperature_and_number() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0]]).expand(3, -1)
    ids, logprobs = draw(logits, [0.0, 1.0, 2.0], [0.0, 0.0, 0.999])
    assert ids == [2, 0, 2]
    ones, halves = torch.log_softmax(logits[0], 0).tolist(), torch.log_softmax(logits[0] / 2, 0).tolist()
    assert logprobs == pytest.approx([ones[2], ones[0], halves[2]])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        draw(torch.tensor([[0.0, bad]]), [1.0], [0.5])

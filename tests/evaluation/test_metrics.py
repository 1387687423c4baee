"""avg@k, pass@k, intervals: against closed forms, enumeration and known coverage."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agent_rl.evaluation.metrics import avg_at_k, bootstrap_interval, paired_difference, paired_p_value, pass_at_k


def test_avg_at_k_is_the_mean_over_samples():
    assert avg_at_k([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).tolist() == [0.5, 0.0, 1.0]


@given(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=7), st.data())
def test_pass_at_k_equals_the_enumeration_of_all_subsets(verdicts, data):
    k = data.draw(st.integers(1, len(verdicts)))
    subsets = list(combinations(verdicts, k))
    assert pass_at_k([verdicts], k)[0] == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_pass_at_k_stays_finite_where_binomials_are_huge():
    verdicts = np.zeros((1, 2000))
    verdicts[0, :3] = 1
    exact = 1 - comb(1997, 1000) / comb(2000, 1000)  # exact integers
    assert pass_at_k(verdicts, 1000)[0] == pytest.approx(exact, rel=1e-12)


def test_pass_at_1_is_avg_at_k():
    verdicts = np.random.default_rng(1).integers(0, 2, (20, 6))
    assert pass_at_k(verdicts, 1) == pytest.approx(avg_at_k(verdicts))


@pytest.mark.parametrize(
    ("scores", "k", "words"), [([[1, 0]], 3, "1..2"), ([[1, 0]], 0, "1..2"), ([[0.5]], 1, "0 or 1")]
)
def test_pass_at_k_refuses_what_it_cannot_mean(scores, k, words):
    with pytest.raises(ValueError, match=words):
        pass_at_k(scores, k)


def test_interval_agrees_with_the_normal_approximation():
    values = np.random.default_rng(0).normal(2.0, 1.0, 400)
    interval = bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)


def test_interval_resamples_questions_not_samples():
    """Eight equal samples of a question carry the information of one."""
    one = np.random.default_rng(2).integers(0, 2, 50)
    assert bootstrap_interval(np.repeat(one[:, None], 8, axis=1)) == bootstrap_interval(one)


def test_interval_is_seeded_and_the_same_in_any_chunking(monkeypatch):
    values = np.random.default_rng(3).random(100)
    whole = bootstrap_interval(values, seed=5)
    assert whole == bootstrap_interval(values, seed=5)
    assert whole != bootstrap_interval(values, seed=6)
    monkeypatch.setattr("agent_rl.evaluation.metrics._CHUNK_ENTRIES", 700)
    assert bootstrap_interval(values, seed=5) == whole


def test_coverage_of_the_interval_is_about_its_level():
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(200):
        interval = bootstrap_interval(rng.random(60) < 0.3, resamples=500)
        hits += interval.low <= 0.3 <= interval.high
    assert 0.88 <= hits / 200 <= 0.99


def test_paired_difference_sees_what_two_intervals_hide():
    difficulty = np.random.default_rng(5).random(80)
    difference = paired_difference(difficulty, difficulty + 0.02)
    assert difference == pytest.approx((0.02, 0.02, 0.02))
    before, after = bootstrap_interval(difficulty), bootstrap_interval(difficulty + 0.02)
    assert before.high > after.low  # the separate intervals overlap


def test_paired_difference_takes_samples_of_each_side():
    difference = paired_difference([[0, 1], [0, 0]], [1.0, 0.5])
    assert difference.mean == pytest.approx(0.5)


@pytest.mark.parametrize("scores", [[], [[]], [1.0, float("nan")], [[[1.0]]]])
def test_empty_or_broken_scores_are_refused(scores):
    with pytest.raises(ValueError, match=r"shape|finite"):
        bootstrap_interval(scores)


def test_paired_difference_needs_the_same_questions():
    with pytest.raises(ValueError, match="2 questions before and 3 after"):
        paired_difference([1, 0], [1, 0, 1])


# ------------------------------------------------------------ against scipy


def test_interval_is_scipys():
    """The percentile bootstrap of scipy.stats on the same question means, up to the noise of resampling."""
    scores = np.random.default_rng(3).random((60, 4)) ** 2
    ours = bootstrap_interval(scores, resamples=40_000)
    theirs = stats.bootstrap(
        (scores.mean(axis=1),), np.mean, method="percentile", n_resamples=40_000, rng=np.random.default_rng(9)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert abs(ours.low - theirs.low) < 0.02 * width
    assert abs(ours.high - theirs.high) < 0.02 * width


def test_paired_test_is_exact_mcnemar_on_verdicts():
    """With 0/1 verdicts the exact sign-flip test on the mean is the exact binomial (McNemar) test."""
    before = [0] * 10 + [1] * 3 + [1] * 40 + [0] * 30
    after = [1] * 10 + [0] * 3 + [1] * 40 + [0] * 30
    assert paired_p_value(before, after) == pytest.approx(stats.binomtest(3, 13).pvalue)


def test_paired_test_agrees_with_the_t_test_on_many_questions():
    rng = np.random.default_rng(5)
    before = rng.random((300, 4))
    after = np.clip(before + rng.normal(0.02, 0.2, before.shape), 0, 1)
    ours = paired_p_value(before, after)
    theirs = stats.ttest_rel(before.mean(axis=1), after.mean(axis=1)).pvalue
    assert 1e-4 < theirs < 0.9
    assert ours == pytest.approx(theirs, rel=0.2, abs=0.005)


def test_paired_test_is_seeded_and_sees_nothing_in_nothing():
    scores = np.random.default_rng(0).random((50, 2))
    assert paired_p_value(scores, scores) == 1.0
    assert paired_p_value([0, 1], [1, 1]) == 1.0
    assert paired_p_value(scores, scores[::-1], seed=2) == paired_p_value(scores, scores[::-1], seed=2)
    with pytest.raises(ValueError, match="3 questions before and 2 after"):
        paired_p_value([1, 0, 1], [1, 0])

"""Numbers over an evaluation: avg@k, pass@k, bootstrap intervals over questions, paired differences.

Letters: ``Q`` questions, ``k`` samples of each, ``R`` bootstrap resamples. Scores are float arrays in any
range. An interval treats the questions as drawn from a larger set. It says nothing about another training
seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK_ENTRIES = 4_000_000  # resampled scores in memory at once (32 MB)


class Interval(NamedTuple):
    """A mean with the ends of its bootstrap interval."""

    mean: float
    low: float
    high: float


def avg_at_k(scores: ArrayLike) -> NDArray[np.float64]:
    """Mean score of each question over its samples: ``[Q, k] -> [Q]``. Their mean is the set's avg@k."""
    return _matrix(scores).mean(axis=1)


def pass_at_k(correct: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased chance that one of ``k`` samples is right, from ``n >= k`` samples: ``[Q, n] -> [Q]``.

    With ``c`` right ones among ``n``: ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374,
    Eq. 1), computed as ``1 - prod_{i=n-c+1..n} (1 - k / i)``, which does not overflow.

    Raises ValueError where ``k`` is not in 1..n or an entry is neither 0 nor 1.
    """
    right = _matrix(correct)
    n = right.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"k={k} is outside 1..{n}, the number of samples of a question")
    if not np.isin(right, (0.0, 1.0)).all():
        raise ValueError("pass@k needs verdicts of 0 or 1; threshold graded scores first")
    c = right.sum(axis=1).astype(int)
    fails = [np.prod(1.0 - k / np.arange(n - count + 1, n + 1)) if n - count >= k else 0.0 for count in range(n + 1)]
    return 1.0 - np.array(fails)[c]


def bootstrap_interval(
    scores: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """Mean over questions and its percentile bootstrap interval (Efron 1979): ``[Q]`` or ``[Q, k]``.

    Questions are resampled, never single samples: the ``k`` samples of one question are not independent, so
    they are averaged first. The same seed gives the same ends. A set on which every question scores the same
    gives an interval of no width; read it as "too few questions", not as certainty.

    Raises ValueError for no questions, a score that is not finite, or a ``level`` outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} is outside (0, 1)")
    if resamples < 1:
        raise ValueError(f"resamples={resamples} is below 1")
    values_Q = _per_question(scores)
    questions = len(values_Q)
    rng = np.random.default_rng(seed)
    means_R = np.empty(resamples)
    chunk = max(1, _CHUNK_ENTRIES // questions)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        means_R[start : start + rows] = values_Q[rng.integers(questions, size=(rows, questions))].mean(axis=1)
    low, high = np.quantile(means_R, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values_Q.mean()), float(low), float(high))


def paired_difference(
    before: ArrayLike, after: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """Mean of ``after - before`` over the same questions, with its bootstrap interval.

    Row ``q`` of both is the same question: ``[Q]`` or ``[Q, k]`` each (the numbers of samples may
    differ). Pairing takes the questions' own difficulty out, so the interval is narrower than that of two
    separate means. An interval that leaves out 0 is a change at ``level``.

    Raises ValueError where the numbers of questions differ, and as ``bootstrap_interval``.
    """
    before_Q, after_Q = _per_question(before), _per_question(after)
    if len(before_Q) != len(after_Q):
        raise ValueError(f"{len(before_Q)} questions before and {len(after_Q)} after: pairs need the same questions")
    return bootstrap_interval(after_Q - before_Q, seed=seed, resamples=resamples, level=level)


def _matrix(scores: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"scores of shape {array.shape}: should be [questions, samples], neither of them 0")
    if not np.isfinite(array).all():
        raise ValueError("a score is not finite: drop or rerun the rows whose rollout failed")
    return array


def _per_question(scores: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(scores, dtype=np.float64)
    return _matrix(array[:, None] if array.ndim == 1 else array).mean(axis=1)


def paired_p_value(before: ArrayLike, after: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value of the paired permutation test on the mean difference over the same questions.

    Under the hypothesis that both models are alike, the sign of each question's difference is a coin toss (Fisher's
    randomisation test). Exact where the questions that differ allow at most ``resamples`` sign patterns, else by
    ``resamples`` random ones; scipy does the work. Arguments and errors as ``paired_difference``.
    """
    from scipy.stats import permutation_test

    before_Q, after_Q = _per_question(before), _per_question(after)
    if len(before_Q) != len(after_Q):
        raise ValueError(f"{len(before_Q)} questions before and {len(after_Q)} after: pairs need the same questions")
    changed = (after_Q - before_Q)[before_Q != after_Q]  # a difference of 0 has no sign to toss
    if len(changed) < 2:  # one question that differs may have gone either way
        return 1.0
    test = permutation_test(
        (changed,),
        lambda values, axis: np.mean(values, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _CHUNK_ENTRIES // len(changed)),
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)

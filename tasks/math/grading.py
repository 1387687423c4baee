"""Is the answer the gold? First by exact text and numbers here, then by value in a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from fractions import Fraction

from tasks.math.canonical import before_percent, canonical, clean, value_of_assignment
from tasks.math.numbers import exact_number, same_number
from tasks.math.workers import Workers

GRADERS = ("math_verify", "normalised_string", "either")
MAX_ANSWER_CHARS = 2000  # a longer answer is wrong: no gold is, and parsing takes longer than linear time


@dataclass(frozen=True, slots=True)
class Verdict:
    """``right`` is what counts. ``timeout``: a comparison took longer than its deadline, and so counts as wrong.
    ``error``: the comparison failed (an answer that sympy cannot handle), and so counts as wrong."""

    right: bool
    timeout: bool = False
    error: bool = False


class GradingUnavailable(RuntimeError):
    """No worker process could be started. A failure of the machine or the caller, not of the answer."""


class Grader:
    """Compares answers with golds; any of several golds will do. Safe to use from many threads at once.

    ``math_verify``: equal as plain numbers (exactly), as text, or by value (``tasks.math.symbolic``).
    ``normalised_string``: equal as text alone, one spelling for what is written in several ways
    (``tasks.math.canonical``). ``either``: right where one of the two says so.

    Percent: ``x%`` equals ``x%``; where only one side has the sign, ``x%`` may mean ``x`` or ``x/100``.
    """

    def __init__(self, grader: str = "math_verify", *, deadline_s: float = 5.0, workers: int = 0) -> None:
        if grader not in GRADERS:
            raise ValueError(f"grader={grader!r}: choose from {', '.join(GRADERS)}")
        if not deadline_s > 0:
            raise ValueError(f"deadline_s={deadline_s} must be above 0")
        if workers < 0:
            raise ValueError(f"workers={workers} is below 0")
        self._grader = grader
        self._workers = Workers(workers, deadline_s)

    def grade(self, golds: Sequence[str], answer: str | None, *, tolerance: float | None = None) -> Verdict:
        """The verdict on one answer. ``tolerance``: how far a number may lie from the gold, absolutely.

        Raises GradingUnavailable where no worker process can be started: never a verdict.
        """
        if answer is None or len(answer) > MAX_ANSWER_CHARS:
            return Verdict(False)
        if self._grader in ("normalised_string", "either") and any(same_text(gold, answer) for gold in golds):
            return Verdict(True)
        if self._grader == "normalised_string":
            return Verdict(False)
        open_golds = []
        for gold in golds:
            known = equal_at_sight(gold, answer, tolerance)
            if known:
                return Verdict(True)
            if known is None:
                open_golds.append(gold)
        return _collect([self._workers.submit(gold, answer, tolerance) for gold in open_golds])


def _collect(comparisons: Sequence[Future[bool]]) -> Verdict:
    timeout = error = False
    for comparison in comparisons:
        try:
            if comparison.result():
                return Verdict(True)
        except TimeoutError:
            timeout = True
        except BrokenProcessPool as broken:
            raise GradingUnavailable(
                "the processes that compare answers cannot be started; a script that scores math needs "
                'if __name__ == "__main__": around its own work'
            ) from broken
        except Exception:  # whatever sympy makes of what a model wrote; a worker out of memory
            error = True
    return Verdict(False, timeout, error)


def same_text(gold: str, answer: str) -> bool:
    """Whether the canonical texts are equal. A gold of which nothing is left equals only the very same text."""
    wanted = canonical(gold)
    return canonical(answer) == wanted if wanted else answer.strip() == gold.strip()


def equal_at_sight(gold: str, answer: str, tolerance: float | None = None) -> bool | None:
    """True or False where plain numbers or equal texts decide it; None where the values must be compared."""
    if not canonical(gold) or not canonical(answer):
        return gold.strip() == answer.strip()
    wanted, said = before_percent(gold), before_percent(answer)
    if wanted is None or said is None:
        if wanted is not None or said is not None:
            return _equal_percent(wanted or gold, said or answer, percent_of_gold=wanted is not None)
        wanted, said = gold, answer
    wanted, said = value_of_assignment(clean(wanted)), value_of_assignment(clean(said))
    if tolerance is not None:
        x, y = exact_number(wanted), exact_number(said)
        return None if x is None or y is None else abs(x - y) <= Fraction(tolerance)
    same = same_number(wanted, said)
    return True if same is None and same_text(wanted, said) else same


def _equal_percent(gold: str, answer: str, *, percent_of_gold: bool) -> bool | None:
    x, y = exact_number(clean(gold)), exact_number(clean(answer))
    if x is None or y is None:
        return True if same_text(gold, answer) else None
    part, whole = (x, y) if percent_of_gold else (y, x)
    return whole in (part, part / 100)

"""Equality of two answers by their value, with math-verify. Runs in a worker process: it may take for ever."""

from __future__ import annotations

import logging
import re
from typing import Any

from tasks.math.canonical import clean, value_of_assignment

_FLOAT_ROUNDING, _PRECISION = 6, 15
# Delimiters, or several words on end: prose, in which math-verify looks for the last expression itself.
_PROSE = re.compile(r"\$|\\\(|\\\[|\\boxed|(?:(?<![\\A-Za-z])[A-Za-z]{2,}[ ,]+){3}")


def prepare() -> None:
    """Import what is heavy, and silence it: a scorer prints nothing."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    import math_verify  # noqa: F401


def equal_values(gold: str, answer: str, tolerance: float | None = None) -> bool:
    """Whether the two are equal by value. ``tolerance``: how far two numbers may lie apart, absolutely.

    math-verify decides, gold first, with sets and inequalities comparable both ways (huggingface/Math-Verify#71: by
    default its verdict depends on the order). Where it says yes, two numbers must also be close
    in relation to their size: it compares floats by their sixth decimal, so that 5.3e-9 would equal 0, and 1/2^80
    would equal 1/2^81.
    """
    gold, answer = clean(gold), clean(answer)
    if ("=" in gold) != ("=" in answer):  # "I_{max} = q" against "q": compare what both are about
        gold, answer = value_of_assignment(gold), value_of_assignment(answer)
    return _equal(gold, answer, tolerance)


def _equal(gold: str, answer: str, tolerance: float | None) -> bool:
    from math_verify import verify

    golds, answers = _parsed(gold), _parsed(answer)
    if not golds or not answers:
        return False
    if tolerance is not None and (distance := _distance(golds[0], answers[0])) is not None:
        return distance <= tolerance
    settings: dict[str, Any] = {
        "float_rounding": _FLOAT_ROUNDING,
        "numeric_precision": _PRECISION,
        "allow_set_relation_comp": True,
        "timeout_seconds": None,
    }
    same = verify(golds, answers, **settings)
    return bool(same) and not _far_apart(golds[0], answers[0])


def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    whole = text if _PROSE.search(text) else rf"\boxed{{{text}}}"
    # The deadline is the worker's: math-verify's own needs signals.
    return parse(whole, [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()], parsing_timeout=None)


def _distance(one: Any, other: Any) -> Any:
    """The absolute difference of two numbers, to 30 digits; None unless both are numbers."""
    from sympy import Expr

    if not (isinstance(one, Expr) and isinstance(other, Expr)) or one.free_symbols or other.free_symbols:
        return None
    difference = (one.doit() - other.doit()).evalf(30)
    return abs(difference) if difference.is_number and difference.is_finite else None


def _far_apart(one: Any, other: Any) -> bool:
    from sympy import Float, UnevaluatedExpr

    distance = _distance(one, other)
    if not distance or one.has(UnevaluatedExpr) or other.has(UnevaluatedExpr):  # the latter: a percentage
        return False
    size = max(abs(one.doit().evalf(30)), abs(other.doit().evalf(30)))
    rounded = one.has(Float) or other.has(Float)
    return bool(distance > size * (1e-5 if rounded else 1e-20))

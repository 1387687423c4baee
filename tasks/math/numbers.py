"""Exact values of plain numbers, so that no comparison of them ever goes through a float."""

from __future__ import annotations

import re
from fractions import Fraction

# Beyond these a number is left to the worker with its deadline: Fraction would build all its digits.
_MAX_LENGTH, _MAX_EXPONENT = 200, 400
_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<whole>\d+)(?=\\frac))?(?:"
    rf"\\frac\{{(?P<up>-?{_DECIMAL})\}}\{{(?P<down>{_DECIMAL})\}}"
    rf"|(?P<over>{_DECIMAL})/(?P<under>{_DECIMAL})"
    rf"|(?P<value>{_DECIMAL})(?:[eE](?P<exp>[+-]?\d+)|(?:\\times|\\cdot|\*)10\^\{{?(?P<power>[+-]?\d+)\}}?)?"
    rf"|10\^\{{?(?P<ten>[+-]?\d+)\}}?)"
)
# A decimal of so many significant digits may stand for a value that it is rounded from: 0.333333 for 1/3, but not 0.33.
_ROUNDED_DIGITS = 6


def exact_number(text: str) -> Fraction | None:
    """The value of a number in plain or LaTeX notation; None for anything else.

    Read are ``-12``, ``025``, ``.5``, ``3/7``, ``\\frac{3}{7}``, ``1\\frac{4}{5}`` (9/5), ``3.8e35``, ``3.8 \\times
    10^{35}`` and ``10^{-8}``.
    """
    text = "".join(text.split())
    if len(text) > _MAX_LENGTH or not (match := _NUMBER.fullmatch(text)):
        return None
    exponent = int(match["exp"] or match["power"] or match["ten"] or 0)
    upper = Fraction(match["up"] or match["over"] or match["value"] or "1")
    lower = Fraction(match["down"] or match["under"] or "1")
    if lower == 0 or abs(exponent) > _MAX_EXPONENT:
        return None
    value = upper / lower * Fraction(10) ** exponent
    if match["whole"]:
        if not 0 <= value < 1:
            return None  # 3\frac{5}{2}: a product, if anything
        value += int(match["whole"])
    return -value if match["sign"] == "-" else value


def same_number(one: str, other: str) -> bool | None:
    """Whether two plain numbers are the same value; None unless both are plain numbers.

    A decimal of at least six significant digits also equals a fraction or whole number that rounds to it.
    """
    x, y = exact_number(one), exact_number(other)
    if x is None or y is None:
        return None
    return x == y or _rounds_to(x, one, other) or _rounds_to(y, other, one)


def _rounds_to(value: Fraction, written: str, decimal: str) -> bool:
    match = re.fullmatch(r"[+-]?(\d*)\.(\d+)", "".join(decimal.split()))
    if match is None or "." in written or len((match[1] + match[2]).lstrip("0")) < _ROUNDED_DIGITS:
        return False
    return round(value, len(match[2])) == Fraction("".join(decimal.split()))

"""Small problems of arithmetic and algebra from a seed: something to train and test on with no data set at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import gcd
from typing import NamedTuple

from tasks.draw import Draw

SPLIT_SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}
_MAX_MISSES = 3000


class Problem(NamedTuple):
    text: str
    solution: str  # ends in the boxed answer
    answer: str


def problems(seed: int, split: str, *, largest: int = 20) -> Iterator[Problem]:
    """Different problems without end; their text alone decides which split they belong to, whatever the seed.

    ``largest`` is about how large the numbers are.

    Raises ValueError where there are none left, or for ``largest`` below 10.
    """
    if largest < 10:
        raise ValueError(f"largest={largest} is below 10")
    return _stream(Draw("math", seed, split, largest), split, largest)


def _stream(draw: Draw, split: str, largest: int) -> Iterator[Problem]:
    seen: set[str] = set()
    misses = 0
    while misses < _MAX_MISSES:
        problem = draw.one(_KINDS)(draw, largest)
        if problem.text in seen or _split_of(problem.text) != split:
            misses += 1
            continue
        seen.add(problem.text)
        misses = 0
        yield problem
    raise ValueError(f"there are only {len(seen)} generated problems in split {split!r}; ask for fewer")


def _split_of(text: str) -> str:
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
    for split, share in SPLIT_SHARES.items():
        if place < share:
            return split
        place -= share
    return "test"


def latex(value: Fraction) -> str:
    """A fraction in lowest terms: ``-\\frac{3}{4}``, or a whole number."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _problem(text: str, steps: str, answer: Fraction | int) -> Problem:
    written = latex(Fraction(answer))
    return Problem(text, f"{steps} The answer is $\\boxed{{{written}}}$.", written)


def _difference(draw: Draw, largest: int) -> Problem:
    a, b = draw.between(2, 5 * largest), draw.between(2, 5 * largest)
    return _problem(f"Compute ${a} - {b}$.", f"${a} - {b} = {a - b}$.", a - b)


def _sum_of_products(draw: Draw, largest: int) -> Problem:
    a, b, c = draw.between(2, 2 * largest), draw.between(2, 9), draw.between(2, 9)
    steps = f"${b} \\cdot {c} = {b * c}$, and ${a} + {b * c} = {a + b * c}$."
    return _problem(f"Compute ${a} + {b} \\cdot {c}$.", steps, a + b * c)


def _sum_of_fractions(draw: Draw, largest: int) -> Problem:
    b, d = draw.between(2, 9), draw.between(2, 9)
    a, c = draw.between(1, b - 1), draw.between(1, d - 1)
    common = b * d // gcd(b, d)
    x, y = a * common // b, c * common // d
    steps = f"Over ${common}$ they are ${x}$ and ${y}$, together ${x + y}$."
    return _problem(f"Add $\\frac{{{a}}}{{{b}}} + \\frac{{{c}}}{{{d}}}$.", steps, Fraction(x + y, common))


def _linear_equation(draw: Draw, largest: int) -> Problem:
    a, b, x = draw.between(2, 9), draw.between(1, largest), draw.between(1, largest)
    c = a * x + b
    steps = f"${a}x = {c} - {b} = {c - b}$, so $x = {x}$."
    return _problem(f"Solve ${a}x + {b} = {c}$ for $x$.", steps, x)


def _percentage(draw: Draw, largest: int) -> Problem:
    share, whole = 10 * draw.between(1, 9), 5 * draw.between(1, largest)
    result = latex(Fraction(whole * share, 100))
    steps = f"${whole} \\cdot {share} = {whole * share}$, and a hundredth of it is ${result}$."
    return _problem(f"What is ${share}\\%$ of ${whole}$?", steps, Fraction(whole * share, 100))


def _remainder(draw: Draw, largest: int) -> Problem:
    a, b = draw.between(10, 4 * largest), draw.between(3, 9)
    steps = f"${b} \\cdot {a // b} = {b * (a // b)}$, and ${a} - {b * (a // b)} = {a % b}$."
    return _problem(f"What is the remainder when ${a}$ is divided by ${b}$?", steps, a % b)


_KINDS: tuple[Callable[[Draw, int], Problem], ...] = (
    _difference,
    _sum_of_products,
    _sum_of_fractions,
    _linear_equation,
    _percentage,
    _remainder,
)

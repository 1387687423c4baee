"""Boxes, numbers and canonical texts."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.math.boxed import last_box
from tasks.math.canonical import before_percent, canonical, clean
from tasks.math.grading import equal_at_sight
from tasks.math.numbers import exact_number, same_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{5}, correcting, \boxed{7}", "7"),
        (r"\boxed{5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{5} and then \boxed{7", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed{}", ""),
        ("5", None),
        (r"\boxed 5", None),
        (r"\boxed{{{5}", None),
    ],
)
def test_the_last_box_whose_braces_close(text, answer):
    """B47 (thinking-machines-lab/tinker-cookbook#903): one rule, the last box, for training and evaluation."""
    assert last_box(text) == answer


@given(st.text(alphabet=r"\{}boxed 1", max_size=60))
def test_any_text_has_a_box_or_none(text):
    found = last_box(text)
    assert found is None or found in text


@pytest.mark.parametrize("text", [r"\boxed{" * 3000, "{" * 10_000, r"\boxed{" * 1500 + "}" * 1500, "}" * 10_000])
def test_ten_thousand_braces_take_no_time(text):
    began = time.process_time()
    last_box(text)
    clean(text)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("025", 25),
        ("144.0", 144),
        ("-.5", Fraction(-1, 2)),
        ("+2", 2),
        ("3/7", Fraction(3, 7)),
        (r"-\frac{3}{7}", Fraction(-3, 7)),
        (r"1\frac{4}{5}", Fraction(9, 5)),
        (r"137 \frac{1}{2}", Fraction(275, 2)),
        ("3.83e35", 383 * 10**33),
        (r"3.83 \times 10^{35}", 383 * 10**33),
        ("10^{-8}", Fraction(1, 10**8)),
        (r"3\frac{5}{2}", None),
        (r"\frac{1}{0}", None),
        ("1e9999999", None),
        ("9" * 300, None),
        ("1,000", None),
        ("x", None),
        ("1.2.3", None),
        ("", None),
    ],
)
def test_exact_values(text, value):
    assert exact_number(text) == value


def test_exact_numbers_are_compared_before_floats():
    """math-verify 0.9.0 calls 1/2^80 equal to 1/2^81."""
    assert same_number(f"1/{2**80}", f"1/{2**81}") is False
    assert same_number("5.3e-9", "0") is False
    assert same_number("1/3", "0.333333") is True
    assert same_number("1/3", "0.33") is False
    assert same_number("1/3", "0.333334") is False
    assert same_number("0.3333333", "0.333333") is False  # two decimals: neither stands for the other
    assert same_number("10000", "9999.999999") is False
    assert same_number("x", "1") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"$\dfrac{1}{2}$.", r"\frac12"),
        (r"\left( \frac{3}{2}, -13 \right)", r"(\frac{3}{2},-13)"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        ("10{,}000", "10,000"),
        ("1 000", "1000"),
        (r"\$32,\!348", "32348"),
        ("$18.90", "18.9"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"5.4 \text{ cents}", "5.4"),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"),
        ("45 minutes", "45"),
        (r"90^\circ", "90"),
        ("90°", "90"),
        ("−5", "-5"),
        (r"\text{even}", "Even"),
        (r"\text{(C)}", "C"),
        ("x=5", "5"),
        (r"f(x) = 2 x", "2x"),
        (r"m_{\max }=n^{2}-n-1", "n^2-n-1"),
        (r"x \in [-2,7]", "[-2,7]"),
        (r"\boxed{4}", "4"),
        (r"$$\boxed{4}$$", "4"),
        (r"a \leq b", r"a\le b"),
        (r"2π", r"2\pi"),
    ],
)
def test_one_spelling(one, other):
    assert canonical(one) == canonical(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3,4", "34"),
        ("1,22", "1.22"),
        (r"6 \text{ and } 8", "6"),
        ("x^2+1=0", "0"),
        ("5x - 7y + 11z + 4 = 0", "0"),
        ("4343_6", "4343"),
        ("A", "B"),
        ("e", "E_1"),
        ("$1$ and $2$", "1"),
    ],
)
def test_what_is_not_the_same_text(one, other):
    assert canonical(one) != canonical(other)


@given(st.text(max_size=60))
def test_any_text_is_normalised_without_an_exception(text):
    assert canonical(text) == canonical(text)
    before_percent(text)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"52\%", "52", True),
        (r"52\%", "0.52", True),
        (r"52\%", r"52 \%", True),
        (r"52\%", "52 percent", True),
        ("0.52", r"52\%", True),
        ("52", r"52\%", True),
        (r"50\%", r"5000\%", False),
        (r"50\%", r"0.5\%", False),
        (r"52\%", "0.0052", False),
        ("52", "0.52", False),
    ],
)
def test_the_percent_rule(gold, answer, right):
    assert equal_at_sight(gold, answer) is right


@pytest.mark.parametrize("gold", ["$", r"\text{}", ".", r"\left\right"])
def test_a_gold_of_which_nothing_is_left_matches_only_itself(gold):
    assert equal_at_sight(gold, gold) is True
    for answer in ("", "5", "..", r"\quad", "anything"):
        assert equal_at_sight(gold, answer) is False
    assert equal_at_sight("5", gold) is False

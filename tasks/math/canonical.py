"""Answers as text: one spelling for what is written in several ways.

Rules, for gold and answer alike:

- math delimiters, a box, ``\\left \\right``, thin spaces, a full stop at the end and white space play no part; -
``\\dfrac \\tfrac \\cfrac`` are ``\\frac``, ``\\frac12`` is ``\\frac{1}{2}``; a typographic minus, times, pi, degree,
infinity or
  order sign is its LaTeX name;
- ``\\text{even}`` is ``even`` (the case of a plain word plays no part), ``(C)`` is ``C``;
- ``x = 5`` and ``x \\in S`` are ``5`` and ``S`` where the left side is one symbol;
- a unit after a number is dropped: ``\\text{cm}^2`` and the like, one of ``_UNITS``, a currency sign, a degree sign;
- ``7,425,000``, ``7{,}425``, ``7,\\!425`` and ``7 425 000`` are whole numbers; ``3,4`` is a list of two;
- a plain number is its exact value: ``025``, ``25.0``, ``2.5 \\times 10^{1}`` and ``\\frac{50}{2}`` are 25.
"""

from __future__ import annotations

import re
import unicodedata

from tasks.math.boxed import last_box
from tasks.math.numbers import exact_number

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^{\circ}", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "±": r"\pm ", "⁄": "/", "√": r"\sqrt ", "′": "'", "€": "", "£": "", "\u00a0": " ", "\u2009": " ",
    "\u202f": " ", "\ufeff": "",
}  # fmt: skip
_UNITS = frozenset({
    "cent", "cents", "cm", "cubic", "day", "days", "degree", "degrees", "dollar", "dollars", "euro", "euros",
    "feet", "foot", "gram", "grams", "hour", "hours", "inch", "inches", "kg", "km", "liter", "liters", "litre",
    "litres", "meter", "meters", "metre", "metres", "mile", "miles", "min", "minute", "minutes", "mm", "month",
    "months", "mph", "pound", "pounds", "second", "seconds", "square", "unit", "units", "week", "weeks", "yard",
    "yards", "year", "years",
})  # fmt: skip
_NAMED = r"\\(?:text(?:bf|it|rm|normal|sf)?|mbox|math(?:rm|bf|it|sf)|rm|operatorname)\s*\{([^{}]*)\}"
_POWER = r"(?:\s*\^\s*\{?-?\d\}?)?"
_UNIT_IN_TEXT = re.compile(rf"(?<=[\d}})])(?:\s*{_NAMED}{_POWER})+$")
_UNIT_WORD = re.compile(rf"(?<=[\d}})])\s*\b([A-Za-z]+){_POWER}$")
_PERCENT = re.compile(r"(?<=[\d}) ])\s*(?:\\?%|(?:\\text\s*\{\s*)?(?:percent|percentage|pct)\b\s*\}?)$")
_ONE_BOX = re.compile(r"[$( ]*\\(?:boxed|fbox).*\}[$.) ]*$", re.DOTALL)
_ONE_SYMBOL = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([A-Za-z]\))?")


def clean(text: str) -> str:
    """An answer without what carries no meaning; still LaTeX."""
    text = unicodedata.normalize("NFC", text)
    for sign, name in _SIGNS.items():
        text = text.replace(sign, name)
    text = _unwrapped(text)
    text = re.sub(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![A-Za-z])", "", text)
    text = re.sub(r"\{,\}|,\\!\s*", ",", text)
    text = re.sub(r"(?<!\\)\\[!,;:> ]|~|\\q?quad(?![A-Za-z])", " ", text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\\frac\s*([^\s{\\])", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*([^\s{\\])", r"\1{\2}", text)
    text = re.sub(r"\\sqrt\s*([^\s{\[\\])", r"\\sqrt{\1}", text)
    text = re.sub(r"_\s*\{\s*\\(max|min|inf|sup)\s*\}", r"_{\1}", text)
    text = re.sub(r"\\(le|ge|ne)q(?:slant)?(?![A-Za-z])", r"\\\1", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))", "", text.replace(r"\$", ""))
    text = re.sub(r"^\s*\$(?=[^$]*$)", "", text)  # a dollar, not a delimiter
    return _without_unit(_without_thousands(text.strip().rstrip(".").strip()))


def canonical(text: str) -> str:
    """The one spelling of an answer ("" where nothing is left). Equal answers may still have two, unequal ones never
    one."""
    text = value_of_assignment(clean(text))
    text = re.sub(_NAMED, lambda match: match[1].strip(), text)
    if re.fullmatch(r"[A-Za-z ]{2,}", text):
        text = text.lower()
    text = re.sub(r"\s+", "", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", re.sub(r"^\(([A-Za-z])\)$", r"\1", text))
    number = exact_number(text)
    return str(number) if number is not None else text


def before_percent(text: str) -> str | None:
    """What stands before the percent sign (or word) at an answer's end; None where there is none."""
    text = _unwrapped(text).rstrip(".")
    match = _PERCENT.search(text)
    return text[: match.start()] if match else None


def value_of_assignment(text: str) -> str:
    """``5`` of ``x = 5``, ``S`` of ``x \\in S``; anything else as it is."""
    match = re.fullmatch(r"([^=]*?)\s*(?:=|\\in(?![A-Za-z]))\s*([^=<>]+)", text)
    if match and _ONE_SYMBOL.fullmatch("".join(match[1].split())) and r"\in " not in match[2]:
        return match[2]
    return text


def _unwrapped(text: str) -> str:
    """Without a box or math delimiters around the whole. Several ``$...$`` are prose, and stay."""
    while True:
        text = text.strip()
        count = text.count(r"\boxed") + text.count(r"\fbox")
        if _ONE_BOX.match(text) and count == 1 and (box := last_box(text)) is not None:
            text = box
            continue
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            inner = text.rstrip(". ")
            middle = inner[len(opening) : -len(closing)]
            if (
                len(inner) > len(opening + closing)
                and inner.startswith(opening)
                and inner.endswith(closing)
                and not inner.endswith("\\" + closing)
                and "$" not in middle.replace(r"\$", "")
                and opening not in middle
            ):
                text = middle
                break
        else:
            return text


def _without_unit(text: str) -> str:
    def kept(match: re.Match[str]) -> str:
        return match.group() if re.match(r"\s*(?:and|or|if|for|where)\b", match[1] or "") else ""

    text = _UNIT_IN_TEXT.sub(kept, text).strip()
    while (match := _UNIT_WORD.search(text)) and match[1] in _UNITS:
        text = text[: match.start()].strip()
    return text


def _without_thousands(text: str) -> str:
    number = r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d{1,3}(?: \d{3})+(?:\.\d+)?"
    return re.sub(rf"^({number})(?=$|\s*[\\%A-Za-z])", lambda match: re.sub(r"[, ]", "", match[1]), text)

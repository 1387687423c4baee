"""Finding the final answer in a response."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def last_box(text: str) -> str | None:
    """The content of the last ``\\boxed{...}`` (or ``\\fbox{...}``) whose braces close; of nested ones the innermost.

    None where there is none. Braces escaped as ``\\{`` do not count. Time grows linearly with the text.
    """
    closes = _closing_braces(text)
    for box in reversed(list(_BOX.finditer(text))):
        opening = box.end() - 1
        if opening in closes:
            return text[opening + 1 : closes[opening]].strip()
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """Where each brace that is closed closes, by where it opens: one pass, whatever the nesting."""
    closes: dict[int, int] = {}
    opened: list[int] = []
    escaped = False
    for place, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            opened.append(place)
        elif character == "}" and opened:
            closes[opened.pop()] = place
    return closes

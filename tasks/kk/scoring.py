"""The reward of a Knights and Knaves response: four tags in order, and identities that can be read and are right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tasks.base import TURN_END, Score

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_TAG = re.compile("|".join(map(re.escape, _TAGS)))
# What may stand around the claims: words that neither deny nor suppose anything. All else makes the answer unreadable,
# so that neither a negation nor a person who is not in the puzzle slips through.
_FILLER = frozenset(
    [
        *(
            "a",
            "an",
            "and",
            "answer",
            "answers",
            "are",
            "as",
            "but",
            "character",
            "characters",
            "conclude",
            "conclusion",
        ),
        *("each", "every", "final", "finally", "following", "follows", "hence", "identities", "identity", "in"),
        *("inhabitant", "inhabitants", "is", "of", "people", "person", "persons", "respectively", "result", "so"),
        *("solution", "that", "the", "then", "therefore", "thus", "we", "whereas", "while", "also"),
    ]
)


def score_response(response: str, names: Sequence[str], solution: Sequence[bool], *, prefilled: bool = False) -> Score:
    """The reward of arXiv 2511.00066 v1, Table 5 (as in Logic-RL)::

        format   +1    each of the four tags occurs exactly once, in order      else -1, and the answer counts as
        unreadable answer   +2    every identity is right
                 -1.5  readable, but not all right
                 -2    unreadable

        totals    3    right        -0.5  readable, wrong     -1  unreadable      -3  bad format

    ``prefilled``: the prompt ends in ``<think>``, which then counts as the response's own first tag; without it the
    response has to begin the thought itself (huggingface/trl#6966). An answer is looked for behind the thought alone.

    ``parts``: ``em`` (total 3), ``format`` and ``answer`` as above, ``readable`` and ``solved`` (1.0 / 0.0) of the
    last answer block whatever the format, so that the two can be told apart (Unakar/Logic-RL#71), ``answered``, and
    ``em`` again under ``em_{n}_people``.
    """
    text = ("<think>" if prefilled else "") + response.replace(TURN_END, " ")
    ordered = tuple(_TAG.findall(text)) == _TAGS
    blocks = re.findall(r"<answer>(.*?)</answer>", text.rpartition("</think>")[2], re.DOTALL)
    answer = blocks[-1].strip() if blocks else None
    found = read_identities(answer, names) if answer is not None else None
    solved = found == dict(zip(names, solution, strict=True))
    format_part = 1.0 if ordered else -1.0
    answer_part = -2.0 if not ordered or found is None else 2.0 if solved else -1.5
    right = float(ordered and solved)
    parts = {
        "em": right,
        "format": format_part,
        "answer": answer_part,
        "readable": float(found is not None),
        "solved": float(solved),
        "answered": float(answer is not None),
        f"em_{len(names)}_people": right,
    }
    return Score(format_part + answer_part, parts, answer)


def read_identities(answer: str, names: Sequence[str]) -> Mapping[str, bool] | None:
    """Who is said to be a knight (True) or a knave (False); None where the answer cannot be read.

    Readable: each person of the puzzle is named exactly once, in a claim ``Ann is a knight`` (also ``Ann: knight``,
    ``Ann = knave``, ``Ann - a knave``, ``Ann (knight)``), in any order, case, numbering, emphasis and punctuation,
    and nothing else is said. So "Ann is not a knight", "Ann is a knight and a knave", a person twice, a person of no
    puzzle, an "if" or an "either" make it unreadable.
    """
    plain = re.sub(r"[*_`#>]+", "", answer)
    # The longest name first: of Al and Alan, Alan is not "Al" with something after it.
    people = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    claim = re.compile(
        rf"(?<!\w)(?P<name>{people})(?!\w)\s*(?:\bis\b|:|=|-+>?|–|—|→|\()?\s*(?:\b(?:an?|the)\b\s*)?\b(?P<kind>knight|knave)\b\)?",
        re.IGNORECASE,
    )
    canonical = {name.casefold(): name for name in names}
    said: dict[str, bool] = {}
    for match in claim.finditer(plain):
        name = canonical.get(match["name"].casefold())
        if name is None or name in said:
            return None
        said[name] = match["kind"].casefold() == "knight"
    rest = re.findall(r"[^\W\d_]+", claim.sub(" ", plain))
    if len(said) != len(names) or any(word.casefold() not in _FILLER for word in rest):
        return None
    return said

"""How an answer is read and compared: SQuAD's normalisation, Search-R1's and FlashRAG's rules.

Every function sees text that the policy wrote. Prompts and tool output never come here.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from tasks.thoughts import outside_thoughts

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_CALL = re.compile(
    r"<search>(.*?)</search>|<\|begin_of_query\|>(.*?)<\|end_of_query\|>|<tool_call>(.*?)</tool_call>", re.DOTALL
)
_TAG = re.compile(r"<(/?)(think|search|tool_call|information|answer)>")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TYPOGRAPHY = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
)


def extract_answer(response: str, *, prefilled: bool = False) -> str | None:
    """The stripped text of the last complete ``<answer>`` block outside thoughts, or None.

    Thoughts are those of ``tasks.thoughts.outside_thoughts``, which says where this and public runs could pull apart.
    """
    blocks = _ANSWER.findall(outside_thoughts(response, prefilled=prefilled))
    return blocks[-1].strip() if blocks else None


def search_queries(response: str, *, prefilled: bool = False) -> list[str]:
    """The queries of the completed calls outside thoughts, in order; empty ones left out.

    Calls are read as Search-R1 writes them (``<search>``), as R1-Searcher does (``<|begin_of_query|>``), and as
    ``<tool_call>`` with JSON.
    """
    found = []
    for tag, bar, call in _CALL.findall(outside_thoughts(response, prefilled=prefilled)):
        query = tag or bar or _query_of(call)
        if query.strip():
            found.append(query.strip())
    return found


def repeated_queries(queries: Sequence[str]) -> int:
    """How many of the queries were asked before, by their normalised words."""
    return len(queries) - len({normalise_answer(query) or query for query in queries})


def _query_of(call: str) -> str:
    """The query of a JSON tool call of the search tool; "" where there is none to read."""
    try:
        asked = json.loads(call)
        query = asked["arguments"]["query"] if asked["name"] == "search" else ""
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return query if isinstance(query, str) else ""


def well_formed(response: str, *, prefilled: bool = False) -> bool:
    """Whether the tags are complete, balanced and in order.

    Any number of ``<think>`` and ``<search>`` (or ``<tool_call>``) blocks, none inside another and no call empty,
    then exactly one ``<answer>`` block that is not empty and that nothing but space follows. ``<information>`` is the
    tool's tag: a policy that writes it has made up a document. ``prefilled``: the prompt ends in ``<think>``, which
    counts as the response's own.
    """
    opened: str | None = None
    start = end = 0
    answered = False
    response = ("<think>" if prefilled else "") + response
    for tag in _TAG.finditer(response):
        closing, name = bool(tag.group(1)), tag.group(2)
        if answered or name == "information" or closing != (opened is not None):
            return False
        if not closing:
            opened, start = name, tag.end()
            continue
        if name != opened or (name != "think" and not response[start : tag.start()].strip()):
            return False
        opened, end = None, tag.end()
        answered = name == "answer"
    return answered and not response[end:].strip()


def normalise_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, without a / an / the, single spaces (Rajpurkar et al. 2016)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str | None, gold: Sequence[str]) -> float:
    """1.0 where the normalised answer equals any normalised gold answer.

    A gold that normalises to nothing ("A", "The", "?") would equal every other such text, so it matches only
    the same text, spaces aside.
    """
    if answer is None:
        return 0.0
    said = normalise_answer(answer)
    for accepted in gold:
        wanted = normalise_answer(accepted)
        if (said == wanted) if wanted else (answer.strip() == accepted.strip()):
            return 1.0
    return 0.0


def em_unicode(answer: str | None, gold: Sequence[str]) -> float:
    """``exact_match`` after NFKC and after typographic dashes and quotes became plain, on both sides."""
    if answer is None:
        return 0.0
    return exact_match(_plain(answer), [_plain(accepted) for accepted in gold])


def cover_em(answer: str | None, gold: Sequence[str]) -> float:
    """1.0 where a normalised gold occurs, as characters, in the normalised answer (FlashRAG's ``sub_em``)."""
    if answer is None:
        return 0.0
    if exact_match(answer, gold):
        return 1.0
    said = normalise_answer(answer)
    return float(any(wanted in said for accepted in gold if (wanted := normalise_answer(accepted))))


def token_f1(answer: str | None, gold: Sequence[str]) -> float:
    """The best F1 over the words of the normalised texts: 2PR / (P + R) (Rajpurkar et al. 2016).

    As in HotpotQA's script, an answer or gold of yes / no earns nothing unless the two are equal.
    """
    if answer is None:
        return 0.0
    if exact_match(answer, gold):
        return 1.0
    said = normalise_answer(answer)
    best = 0.0
    for accepted in gold:
        wanted = normalise_answer(accepted)
        if said != wanted and {said, wanted} & {"yes", "no", "noanswer"}:
            continue
        said_words, wanted_words = said.split(), wanted.split()
        common = sum((Counter(said_words) & Counter(wanted_words)).values())
        if common:
            precision, recall = common / len(said_words), common / len(wanted_words)
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text.translate(_TYPOGRAPHY)).translate(_TYPOGRAPHY)

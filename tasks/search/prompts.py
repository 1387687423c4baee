"""What the model is told. One user message, no system prompt."""

from __future__ import annotations

_BRIEF = "Search, then answer.\nQuestion: {question}\n"

_FULL = """\
Find the answer to the question below with the help of a search engine.

Work in turns. Begin each turn by thinking it over inside <think> and </think>. When you lack a fact, write \
a short query inside <search> and </search>; the engine then shows you passages inside <information> and \
</information>. Read them, think again, and search as often as you need. Never write an <information> block \
yourself. When you know the answer, write it inside <answer> and </answer>: a name, a date or a few words, \
without explanation. For example: <answer> Lisbon </answer>

Question: {question}
"""

_HERMES = """\
Find the answer to the question below with the help of the search tool. When you lack a fact, call the tool with a \
short query; you may do so as often as you need. When you know the answer, write it inside <answer> and </answer>: a \
name, a date or a few words, without explanation. For example: <answer> Lisbon </answer>

Question: {question}
"""

PROMPTS = {"brief": _BRIEF, "full": _FULL, "hermes": _HERMES}


def render(style: str, question: str) -> str:
    # Not str.format on the question: a question may hold braces.
    return PROMPTS[style].replace("{question}", question.strip())

"""What the model is told. One user message, no system prompt. It tells how to call the tools that there are."""

from __future__ import annotations

from collections.abc import Sequence

_BRIEF = "{ways}, then answer.\nQuestion: {question}\n"

_FULL = """\
Find the answer to the question below with the help of {helpers}.

Work in turns. Begin each turn by thinking it over inside <think> and </think>. {calls}When you know the answer, \
write it inside <answer> and </answer>: a name, a date or a few words, without explanation. For example: \
<answer> Lisbon </answer>

Question: {question}
"""

# by tool: in the brief prompt; what it is; how it is called
_TOOLS = {
    "search": (
        "Search",
        "a search engine",
        "When you lack a fact, write a short query inside <search> and </search>; the engine then shows you passages "
        "inside <information> and </information>. Read them, think again, and search as often as you need. Never "
        "write an <information> block yourself.",
    ),
    "python": (
        "Run Python",
        "Python",
        "When something is to be computed, write Python code inside <python> and </python>; it is run, and what it "
        "prints, and the value of its last line, is shown to you inside <output> and </output>. Names stay defined "
        "from one run to the next. Never write an <output> block yourself.",
    ),
    "sql": (
        "Query the database",
        "a database",
        "To ask the database, write one SELECT statement inside <sql> and </sql>; its rows are shown to you inside "
        "<output> and </output>.",
    ),
}

_HERMES = """\
Find the answer to the question below with the help of the search tool. When you lack a fact, call the tool with a \
short query; you may do so as often as you need. When you know the answer, write it inside <answer> and </answer>: a \
name, a date or a few words, without explanation. For example: <answer> Lisbon </answer>

Question: {question}
"""

STYLES = {"brief": _BRIEF, "full": _FULL, "hermes": _HERMES}
TOOLS = tuple(_TOOLS)


def render(style: str, question: str, tools: Sequence[str] = ("search",)) -> str:
    ways, helpers, calls = zip(*(_TOOLS[tool] for tool in tools), strict=True) if tools else ((), (), ())
    filled = (
        STYLES[style]
        .replace("{ways}", _joined(ways, "or") or "Think")
        .replace("{calls}", "".join(f"{call} " for call in calls))
    )
    filled = filled.replace("{helpers}", _joined(helpers, "and") or "what you know")
    # Not str.format on the question: a question may hold braces.
    return filled.replace("{question}", question.strip())


def _joined(words: Sequence[str], last: str) -> str:
    first, *rest = words or ("",)
    rest = [word[:1].lower() + word[1:] if last == "or" else word for word in rest]
    return f"{', '.join([first, *rest[:-1]])} {last} {rest[-1]}" if rest else first

"""How a prompt tells the model to call tools in the tag grammars."""

from __future__ import annotations

from collections.abc import Sequence

_TAUGHT = {
    "search": "To look something up, write a short query inside <search> and </search>: a search engine then shows you "
    "passages inside <information> and </information>.",
    "python": "To compute something, write Python code inside <python> and </python>: it is run, and what it prints is "
    "shown to you inside <output> and </output>.",
}


def teach_tools(tools: Sequence[str]) -> str:
    """A paragraph about each of the tools, ended by an empty line; "" for none. Raises ValueError for an unknown
    one."""
    for tool in tools:
        if tool not in _TAUGHT:
            raise ValueError(f"tools: {tool!r} has no instructions; choose from {', '.join(_TAUGHT)}")
    return "".join(f"{_TAUGHT[tool]} You may do so several times.\n\n" for tool in tools)

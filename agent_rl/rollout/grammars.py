"""The grammars by name (``rollout.grammar``)."""

from __future__ import annotations

from agent_rl.rollout.plain import PlainGrammar
from agent_rl.rollout.protocol import Grammar, SearchR1Grammar

GRAMMARS: dict[str, Grammar] = {grammar.name: grammar for grammar in (SearchR1Grammar(), PlainGrammar())}

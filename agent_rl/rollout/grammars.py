"""The grammars by name (``rollout.grammar``)."""

from __future__ import annotations

from agent_rl.rollout.codec import TokenCodec
from agent_rl.rollout.hermes import HermesGrammar
from agent_rl.rollout.plain import PlainGrammar
from agent_rl.rollout.protocol import Grammar, SearchR1Grammar


def make_grammar(name: str, codec: TokenCodec, max_calls_per_turn: int = 1) -> Grammar:
    """The grammar of that name; ``codec`` writes the results' frames where the chat template has them.

    Raises ValueError for an unknown name.
    """
    match name:
        case "search_r1":
            return SearchR1Grammar()
        case "plain":
            return PlainGrammar()
        case "hermes":
            return HermesGrammar(codec, max_calls_per_turn)
        case _:
            raise ValueError(f"grammar {name!r} is unknown: choose from search_r1, plain, hermes")

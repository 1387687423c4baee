"""Grammar ``plain``: free text. A turn that calls no tool is the answer, and its end is the model's own end token."""

from __future__ import annotations

from agent_rl.rollout.protocol import AnswerAction, NoAction, ParsedTurn, SearchR1Grammar


class PlainGrammar(SearchR1Grammar):
    """Tool calls as in ``search_r1``, no answer tag. A turn that ends inside ``<think>`` holds neither."""

    name = "plain"
    answer_tags = ()

    def parse(self, text: str, tools: tuple[str, ...]) -> ParsedTurn:
        parsed = super().parse(text, tools)
        if not isinstance(parsed.action, NoAction) or parsed.open_think:
            return parsed
        return ParsedTurn(AnswerAction(text.rpartition("</think>")[2].strip()), parsed.calls_in_think)

    def correction(self, tools: tuple[str, ...]) -> str:
        return "\nThat ended inside a thought. Close it with </think> and give the answer.\n"

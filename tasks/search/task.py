"""The search task: questions, prompt, reward and demonstrations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tasks.base import Message, OracleTurn, Score, TaskDataError, TaskItem
from tasks.ready_prompt import dataset_prompt
from tasks.search.data import JsonlQuestions, MiniwikiQuestions, Questions
from tasks.search.prompts import STYLES, TOOLS, render
from tasks.search.scoring import (
    cover_em,
    em_unicode,
    exact_match,
    extract_answer,
    repeated_queries,
    search_queries,
    token_f1,
    well_formed,
)
from tasks.thoughts import opens_think

REWARDS = ("em_pm1", "em", "f1")


class SearchTask:
    """Answer a question with the help of the ``search`` tool. Grammar ``search_r1``.

    Reward of a response, with EM, F1 and format read from the policy's text alone::

        em_pm1:  +1 if EM else -1   (TR-GRPO paper, Eq. 14)
        em:       1 if EM else  0
        f1:       F1 in [0, 1]
        plus  format_bonus       where the tags are complete, balanced and in order
        minus no_search_penalty  where there is an answer but no completed search before it

    ``Score.parts``: ``em``, ``f1``, ``cover_em``, ``em_unicode``, ``format``, ``answered``, ``searched``, each in
    [0, 1], and ``repeated_queries``, a number; all logged whatever the reward is made of. The format never decides
    whether the answer is read.

    ``data`` mirrors the config's record: ``{"kind": "miniwiki", "seed", "passages", "question_types"}`` or
    ``{"kind": "jsonl", "train", "dev", "test", "eval_fraction"}``. ``top_k`` documents are
    asked for per search. ``tools`` are those that the prompt offers (None: ``search``). Raises ValueError for a
    setting out of range, TaskDataError for bad data.
    """

    name = "search"

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        prompt: str = "full",
        reward: str = "em_pm1",
        format_bonus: float = 0.0,
        no_search_penalty: float = 0.0,
        top_k: int = 3,
        tools: Sequence[str] | None = None,
    ) -> None:
        if prompt not in (*STYLES, "dataset"):
            raise ValueError(f"prompt={prompt!r}: choose from {', '.join([*STYLES, 'dataset'])}")
        if reward not in REWARDS:
            raise ValueError(f"reward={reward!r}: choose from {', '.join(REWARDS)}")
        for setting, value in (("format_bonus", format_bonus), ("no_search_penalty", no_search_penalty)):
            if value < 0:
                raise ValueError(f"{setting}={value} is below 0")
        if top_k < 1:
            raise ValueError(f"top_k={top_k} is below 1")
        self.tools: tuple[str, ...] = ("search",) if tools is None else tuple(tools)
        if unknown := sorted(set(self.tools) - set(TOOLS)):
            raise ValueError(f"tools={unknown}: choose from {', '.join(TOOLS)}")
        self.max_score = 1.0 + format_bonus
        self.tool_arguments: Mapping[str, Mapping[str, Any]] = {"search": {"top_k": top_k}}
        self.grammar = "hermes" if prompt == "hermes" else "search_r1"
        self._prompt = prompt
        self._reward = reward
        self._format_bonus = format_bonus
        self._no_search_penalty = no_search_penalty
        questions = _questions(data)
        self._items = cache(questions.items)  # read once per split: trainer and evaluation ask again and again

    def items(self, split: str) -> Sequence[TaskItem]:
        return self._items(split)

    def messages(self, item: TaskItem) -> list[Message]:
        if self._prompt == "dataset":
            return dataset_prompt(item)
        return [{"role": "user", "content": render(self._prompt, item.question, self.tools)}]

    def score(self, item: TaskItem, response_text: str) -> Score:
        prefilled = opens_think(self.messages(item))
        answer = extract_answer(response_text, prefilled=prefilled)
        queries = search_queries(response_text, prefilled=prefilled)
        parts = {
            "em": exact_match(answer, item.gold),
            "f1": token_f1(answer, item.gold),
            "cover_em": cover_em(answer, item.gold),
            "em_unicode": em_unicode(answer, item.gold),
            "format": float(well_formed(response_text, prefilled=prefilled)),
            "answered": float(answer is not None),
            "searched": float(bool(queries)),
            "repeated_queries": float(repeated_queries(queries)),
        }
        match self._reward:
            case "em_pm1":
                value = 2 * parts["em"] - 1
            case "em":
                value = parts["em"]
            case _:
                value = parts["f1"]
        value += self._format_bonus * parts["format"]
        if parts["answered"] and not parts["searched"]:
            value -= self._no_search_penalty
        return Score(value, parts, answer)

    def oracle(self, item: TaskItem) -> list[OracleTurn]:
        if "search" not in self.tools:
            raise TaskDataError(f"demonstrations search, but tools={list(self.tools)}; use warmup.traces=0")
        queries = item.meta.get("oracle")
        if not queries:
            raise TaskDataError(
                f"item {item.id!r} has no demonstration: its row needs an 'oracle' list of search queries; "
                "without one, use warmup.traces=0"
            )
        return self._demonstration(item, queries, item.gold[0])

    def validate(self, item: TaskItem) -> None:
        queries = item.meta.get("oracle") or [item.question]
        for gold in item.gold:
            text = "".join(turn.text for turn in self._demonstration(item, queries, gold))
            score = self.score(item, text)
            if score.value != self.max_score:
                raise TaskDataError(
                    f"item {item.id!r}: the gold answer {gold!r} scores {score.value}, not {self.max_score}"
                )

    def _demonstration(self, item: TaskItem, queries: Sequence[str], answer: str) -> list[OracleTurn]:
        turns = [("search", query, f"I need to find: {query}.") for query in queries]
        turns.append(("answer", answer, "The passages give the answer."))
        thoughts = self._prompt != "brief"
        texts = [
            (f"<think> {thought} </think>\n" if thoughts else "") + self._written(tag, text)
            for tag, text, thought in turns
        ]
        if opens_think(self.messages(item)):  # the prompt's own <think> begins the first thought
            texts[0] = texts[0].removeprefix("<think>")
        return [OracleTurn(text) for text in texts]

    def _written(self, tag: str, text: str) -> str:
        if self.grammar == "hermes" and tag == "search":
            call = json.dumps({"name": "search", "arguments": {"query": text}}, ensure_ascii=False)
            return f"<tool_call>\n{call}\n</tool_call>"
        return f"<{tag}> {text} </{tag}>"


def _questions(data: Mapping[str, Any]) -> Questions:
    settings = dict(data)
    kind = settings.pop("kind", None)
    match kind:
        case "miniwiki":
            return MiniwikiQuestions(**settings)
        case "jsonl":
            return JsonlQuestions(**settings)
        case _:
            raise ValueError(f"data.kind={kind!r}: choose from miniwiki, jsonl")

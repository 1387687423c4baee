"""The math task: problems, prompt, reward and demonstrations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from tasks.base import Message, OracleTurn, Score, TaskDataError, TaskItem
from tasks.math.boxed import last_box
from tasks.math.data import GeneratedProblems, ProblemFiles
from tasks.math.grading import Grader
from tasks.ready_prompt import asked
from tasks.thoughts import opens_think, outside_thoughts
from tasks.tool_use import teach_tools

_ASK = {
    "boxed": "Solve the problem below. Reason step by step, and write the final answer, and nothing else, inside "
    "\\boxed{}.\n\n",
    "tags": "Solve the problem below. First reason step by step inside <think> and </think>, then write the final "
    "answer, and nothing else, inside <answer> and </answer>.\n\n",
}
PROMPTS = ("brief", "full", "dataset")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Problems(Protocol):
    def items(self, split: str) -> Sequence[TaskItem]: ...


class MathTask:
    """Solve a problem; the final answer stands in ``\\boxed{}``. Reward 1 where it is right, else 0; no part for format
    (TR-GRPO paper, B.1.2).

    The answer is the last box of the response whose braces close, outside ``<think>`` blocks (with
    ``answer_in="tags"`` the last ``<answer>`` block, without a box around it). It is compared by
    ``tasks.math.grading.Grader``.

    ``Score.parts``: ``em`` (the reward), ``answered``, ``timeout`` and ``grading_error`` (comparisons that took
    longer than ``deadline_s`` or failed, which count as wrong).

    ``data`` mirrors the config's record: ``{"kind": "generated", "seed", "largest", "train", "dev", "test"}`` or
    ``{"kind": "files", "train", "dev", "test"}`` (lists of files). ``prompt``: ``full`` asks for the form of the
    answer, ``brief`` is the problem alone, ``dataset`` the row's own prompt, untouched. With ``prefill_think`` the
    prompt ends in ``<think>``. ``tools``: those that the model may call. Raises ValueError for a setting out of
    range, TaskDataError for bad data.
    """

    name = "math"
    max_score = 1.0

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        prompt: str = "full",
        prefill_think: bool = False,
        answer_in: str = "boxed",
        grader: str = "math_verify",
        deadline_s: float = 5.0,
        workers: int = 0,
        tools: Sequence[str] | None = None,
    ) -> None:
        if prompt not in PROMPTS:
            raise ValueError(f"prompt={prompt!r}: choose from {', '.join(PROMPTS)}")
        if answer_in not in _ASK:
            raise ValueError(f"answer_in={answer_in!r}: choose from {', '.join(_ASK)}")
        if prefill_think and prompt == "dataset":
            raise ValueError("prefill_think=true changes the prompt, but prompt=dataset leaves it untouched; drop one")
        self.grammar = "plain" if answer_in == "boxed" else "search_r1"
        self.tools: tuple[str, ...] = tuple(tools or ())
        self.tool_arguments: Mapping[str, Mapping[str, Any]] = {}
        self._answer_in = answer_in
        self._ask = {"brief": "", "full": teach_tools(self.tools) + _ASK[answer_in]}.get(prompt)
        self._prefill = prefill_think
        self._grader = Grader(grader, deadline_s=deadline_s, workers=workers)
        self._items = cache(_problems(data).items)

    def items(self, split: str) -> Sequence[TaskItem]:
        return self._items(split)

    def messages(self, item: TaskItem) -> list[Message]:
        return asked(item, self._ask, prefill_think=self._prefill)

    def score(self, item: TaskItem, response_text: str) -> Score:
        answer = self._read(item, response_text)
        verdict = self._grader.grade(item.gold, answer, tolerance=item.meta.get("tolerance"))
        parts = {
            "em": float(verdict.right),
            "answered": float(answer is not None),
            "timeout": float(verdict.timeout),
            "grading_error": float(verdict.error),
        }
        return Score(parts["em"], parts, answer)

    def oracle(self, item: TaskItem) -> list[OracleTurn]:
        """The row's own solution, its answer boxed at the end."""
        solution = item.meta.get("solution")
        if not isinstance(solution, str):
            raise TaskDataError(
                f"item {item.id!r} has no demonstration: its row needs a 'solution'; without one, use warmup.traces=0"
            )
        return [OracleTurn(self._response(item, solution, item.gold[0]))]

    def validate(self, item: TaskItem) -> None:
        for gold in item.gold:
            score = self.score(item, self._response(item, "So", gold))
            if score.value != self.max_score:
                raise TaskDataError(f"item {item.id!r}: the gold answer {gold!r} scores {score.value}, not 1")

    def _read(self, item: TaskItem, response_text: str) -> str | None:
        said = outside_thoughts(response_text, prefilled=opens_think(self.messages(item)))
        if self._answer_in == "boxed":
            return last_box(said)
        blocks = _ANSWER.findall(said)
        return blocks[-1].strip() if blocks else None

    def _response(self, item: TaskItem, solution: str, gold: str) -> str:
        """A right response: the thought closed where the prompt has begun one, the gold where it is looked for."""
        begun = opens_think(self.messages(item))
        if self._answer_in == "tags":
            return f"{'' if begun else '<think>'} {solution} </think>\n<answer> {gold} </answer>"
        closing = "\n</think>\n" if begun else "\n"
        boxed = last_box(solution)
        if boxed == gold and not begun:
            return solution
        return f"{solution}{closing}The answer is $\\boxed{{{gold}}}$."


def _problems(data: Mapping[str, Any]) -> Problems:
    settings = dict(data)
    match kind := settings.pop("kind", None):
        case "generated":
            return GeneratedProblems(**settings)
        case "files":
            return ProblemFiles(**settings)
        case _:
            raise ValueError(f"data.kind={kind!r}: choose from generated, files")

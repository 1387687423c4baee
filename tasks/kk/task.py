"""The Knights and Knaves task: puzzles, prompt, reward and demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from tasks.base import Message, OracleTurn, Score, TaskDataError, TaskItem
from tasks.kk.data import GeneratedPuzzles, PuzzleFiles
from tasks.kk.scoring import score_response
from tasks.kk.statements import truth_table
from tasks.kk.wording import identities, say
from tasks.ready_prompt import asked
from tasks.thoughts import opens_think
from tasks.tool_use import teach_tools

_ASK = """\
Solve the riddle below. First think it through inside <think> and </think>, once. Then give everybody's identity \
inside <answer> and </answer>, once, a line a person, like this: <answer>
(1) Name is a knight
(2) Name is a knave
</answer>

"""
PROMPTS = ("brief", "full", "dataset")


class Puzzles(Protocol):
    def items(self, split: str) -> Sequence[TaskItem]: ...


class KKTask:
    """Say of each islander whether he is a knight or a knave. The reward is that of
    ``tasks.kk.scoring.score_response``: 3, -0.5, -1 or -3.

    ``data`` mirrors the config's record: ``{"kind": "generated", "seed", "people", "depth", "width", "train", "dev",
    "test"}`` (numbers of puzzles a size) or ``{"kind": "files", "train", "dev", "test"}`` (lists of files).
    ``prompt``: ``full`` explains the form of the answer; ``brief`` is the riddle alone, for a model that had a
    warm-up; ``dataset`` is the row's own prompt, untouched. With ``prefill_think`` the prompt ends in ``<think>``.
    ``tools``: those that the model may call.

    Raises ValueError for a setting out of range, TaskDataError for bad data.
    """

    name = "kk"
    grammar = "search_r1"
    max_score = 3.0

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        prompt: str = "full",
        prefill_think: bool = False,
        tools: Sequence[str] | None = None,
    ) -> None:
        if prompt not in PROMPTS:
            raise ValueError(f"prompt={prompt!r}: choose from {', '.join(PROMPTS)}")
        if prefill_think and prompt == "dataset":
            raise ValueError("prefill_think=true changes the prompt, but prompt=dataset leaves it untouched; drop one")
        self.tools: tuple[str, ...] = tuple(tools or ())
        self.tool_arguments: Mapping[str, Mapping[str, Any]] = {}
        self._ask = {"brief": "", "full": teach_tools(self.tools) + _ASK}.get(prompt)
        self._prefill = prefill_think
        self._items = cache(_puzzles(data).items)

    def items(self, split: str) -> Sequence[TaskItem]:
        return self._items(split)

    def messages(self, item: TaskItem) -> list[Message]:
        return asked(item, self._ask, prefill_think=self._prefill)

    def score(self, item: TaskItem, response_text: str) -> Score:
        prefilled = opens_think(self.messages(item))
        return score_response(response_text, item.meta["names"], item.meta["solution"], prefilled=prefilled)

    def oracle(self, item: TaskItem) -> list[OracleTurn]:
        """The solution, proved by checking each statement against it."""
        names, solution, statements = item.meta["names"], item.meta["solution"], item.meta["statements"]
        if statements is None:
            raise TaskDataError(
                f"item {item.id!r} has no demonstration: its row needs 'statements'; without them, use warmup.traces=0"
            )
        assignment = sum(knight << person for person, knight in enumerate(solution))
        checks = " ".join(
            f"{name}: {say(statement, names)}. {bool(truth_table(statement, len(names)) >> assignment & 1)}."
            for name, statement in zip(names, statements, strict=True)
        )
        return [OracleTurn(self._response(item, checks))]

    def validate(self, item: TaskItem) -> None:
        score = self.score(item, self._response(item, "So:"))
        if score.value != self.max_score:
            raise TaskDataError(f"item {item.id!r}: its solution scores {score.value}, not {self.max_score}")

    def _response(self, item: TaskItem, thought: str) -> str:
        opening = "" if opens_think(self.messages(item)) else "<think>"
        answer = identities(item.meta["names"], item.meta["solution"])
        return f"{opening} {thought} </think>\n<answer>\n{answer}\n</answer>"


def _puzzles(data: Mapping[str, Any]) -> Puzzles:
    settings = dict(data)
    match kind := settings.pop("kind", None):
        case "generated":
            return GeneratedPuzzles(**settings)
        case "files":
            return PuzzleFiles(**settings)
        case _:
            raise ValueError(f"data.kind={kind!r}: choose from generated, files")

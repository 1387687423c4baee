"""What a task is: items, prompts, and a scorer that sees model-written text only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, runtime_checkable

# Stands between the turns of a response: white space to ``str.strip`` and to a regex, so a scorer that does not care
# about turns need not know of it. The engine takes it out of what a model writes.
TURN_END = "\x1e"


class Message(TypedDict):
    """One chat message. A last message of the ``assistant`` is a beginning that the policy continues.

    Role ``raw``: the content is a whole prompt that is used as it stands, with no chat template around it.
    """

    role: str  # "system" | "user" | "assistant" | "tool" | "raw"
    content: str


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One question. ``gold`` holds every accepted answer; ``meta`` is the task's own (hops, titles, ...)."""

    id: str
    question: str
    gold: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """``value`` is the reward; ``parts`` are logged beside it (``f1``, ``format``, ...).

    Every task gives the part ``em``: 1.0 where the answer is right, else 0.0; a part that some items lack is averaged
    over those that have it. ``answer`` is what was read as the answer, for the stored row; None where there is none.
    """

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class OracleTurn:
    """One turn of a demonstration: ``text`` is what the policy should write, up to and including its tag.

    The observation that follows is never written here: it comes from the real tool.
    """

    text: str


@runtime_checkable
class Task(Protocol):
    name: str
    max_score: float
    grammar: str  # the grammar that its prompts speak of: what ``rollout.grammar=auto`` takes
    tools: tuple[str, ...]  # names of the tools that its trajectories may call
    tool_arguments: Mapping[str, Mapping[str, Any]]  # by tool: what each call gets beside the policy's own

    def items(self, split: str) -> Sequence[TaskItem]: ...

    def messages(self, item: TaskItem) -> list[Message]: ...

    def score(self, item: TaskItem, response_text: str) -> Score:
        """Score what the model wrote in all its turns, joined by ``TURN_END`` (no prompt, no tool output).

        It is called from several threads at once, and may take its time: the rollouts go on meanwhile.
        """
        ...

    def oracle(self, item: TaskItem) -> list[OracleTurn]:
        """The turns of a perfect trajectory, for the supervised warm-up.

        Raises TaskDataError if it has none.
        """
        ...

    def validate(self, item: TaskItem) -> None:
        """Raise TaskDataError unless the gold answer itself scores ``max_score``."""
        ...


class TaskDataError(ValueError):
    """A row of a dataset cannot be used; the message names file, line and key."""

    exit_code = 1


class EmptySplit(TaskDataError):
    """A split has no items, though others may: no file was given for it, or no row fell into it."""

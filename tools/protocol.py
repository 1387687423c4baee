"""What a tool is: the only thing the rollout core knows about tools, beside HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Status = Literal["ok", "invalid", "error", "timeout", "overloaded"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. ``session`` names the trajectory; ``deadline_s`` is the time left to it, in seconds."""

    id: str
    tool: str
    arguments: dict[str, Any]
    session: str | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call.

    ``status``: ``ok``; ``invalid`` (bad arguments, the text names the field); ``error`` (the model's own
    fault, such as an exception in its code); ``timeout`` (it ran too long); ``overloaded`` (it was not
    started). The first four are observations; ``overloaded`` is a failure of infrastructure.
    """

    id: str
    status: Status
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False
    elapsed_s: float = 0.0
    queued_s: float = 0.0


class InvalidArguments(ValueError):
    """Arguments that break a tool's schema; the message names the field and is shown to the model."""


@runtime_checkable
class Tool(Protocol):
    """A tool runs batches of calls and answers each, in order. It never raises for a call's own fault."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of the arguments

    async def run(self, calls: list[ToolCall]) -> list[ToolResult]: ...

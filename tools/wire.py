"""The JSON of the tool server: request records, and errors that name the field."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tools.protocol import ToolCall, ToolResult

Name = Annotated[str, Field(min_length=1, max_length=200)]


class BadRequest(Exception):
    """A request that is the caller's to mend. ``status`` is 4xx; the text names the field."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class WireCall(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    id: Name
    tool: Name
    arguments: dict[str, Any]
    session: Name | None = None
    deadline_s: Annotated[float, Field(gt=0)] | None = None

    def tool_call(self) -> ToolCall:
        return ToolCall(self.id, self.tool, self.arguments, self.session, self.deadline_s)


class CallRequest(BaseModel):
    """Body of ``POST /v1/call``."""

    model_config = ConfigDict(extra="forbid")

    calls: Annotated[list[WireCall], Field(min_length=1)]


class EndSessionRequest(BaseModel):
    """Body of ``POST /v1/end_session``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sessions: Annotated[list[Name], Field(min_length=1, max_length=10_000)]


class RetrieveRequest(BaseModel):
    """Body of ``POST /retrieve``, as Search-R1's clients send it; they may send more, which is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


Request = TypeVar("Request", bound=BaseModel)


def parse_body(model: type[Request], body: bytes) -> Request:
    """Raises BadRequest 422 with every fault, each with its field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        # never with the value: it may be megabytes, or not be text that can be encoded
        faults = [f"{_field(fault['loc'])}: {fault['msg']}" for fault in error.errors(include_input=False)[:10]]
        raise BadRequest(422, "; ".join(faults)) from None


def _field(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{str(part)[:100]}"
    return path.lstrip(".") or "body"


def result_json(result: ToolResult) -> dict[str, Any]:
    return asdict(result)

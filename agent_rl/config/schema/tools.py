"""Which tools a run's trajectories may call, and how the run reaches its tool server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agent_rl.config.schema.record import (
    PositiveFloat,
    PositiveInt,
    Record,
)
from agent_rl.config.schema.serve import PythonToolConfig, SearchToolConfig, SqlToolConfig, ToolName, each_once


class ToolsConfig(Record):
    names: Annotated[tuple[ToolName, ...] | None, Field(description="null: those that the task has by itself")] = None
    url: str = "http://127.0.0.1:8900"
    token_file: str | None = None
    autostart: bool = Field(False, description="start a server of the tools for the run and stop it after")
    index: str = Field("indexes/miniwiki", description="used by autostart only")
    search: SearchToolConfig = Field(SearchToolConfig(), description="used by autostart only")
    python: PythonToolConfig = Field(PythonToolConfig(), description="used by autostart only")
    sql: SqlToolConfig = Field(SqlToolConfig(), description="used by autostart only")
    call_timeout_s: PositiveFloat = 30.0
    max_connections: PositiveInt = 64

    @field_validator("names")
    @classmethod
    def _each_once(cls, names: tuple[ToolName, ...] | None) -> tuple[ToolName, ...] | None:
        return each_once(names)

    @model_validator(mode="after")
    def _has_time_for_a_call(self) -> ToolsConfig:
        for name, timeout_s in (("python", self.python.timeout_s), ("sql", self.sql.timeout_s)):
            if self.autostart and timeout_s >= self.call_timeout_s:
                raise ValueError(
                    f"{name}.timeout_s={timeout_s:g} is not below call_timeout_s={self.call_timeout_s:g}: "
                    "a call would be given up before its own limit ends it"
                )
        return self

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port beyond 65535, a bracket that is not closed
            whole = False
        if not whole:
            raise ValueError(f"{url!r} is not an address; write it as http://127.0.0.1:8900")
        return url

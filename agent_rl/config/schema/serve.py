"""Serving tools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agent_rl.config.schema.record import (
    NonNegativeInt,
    PathText,
    PositiveInt,
    Record,
)


class SearchToolConfig(Record):
    max_batch: PositiveInt = 64
    max_queue: PositiveInt = 1024
    max_top_k: Annotated[int, Field(gt=0, le=2048)] = 100
    max_query_chars: PositiveInt = 2000
    cache_entries: NonNegativeInt = 10_000


class ServeToolsConfig(Record):
    index: PathText = "indexes/miniwiki"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8900
    token_file: str | None = None
    max_body_bytes: PositiveInt = 4 * 2**20
    search: SearchToolConfig = SearchToolConfig()

"""Building an index."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agent_rl.config.schema.record import (
    PathText,
    PositiveInt,
    Record,
)
from agent_rl.config.schema.tasks import MiniwikiWorld


class JsonlCorpus(Record):
    kind: Literal["jsonl"] = "jsonl"
    path: str


CorpusConfig = Annotated[MiniwikiWorld | JsonlCorpus, Field(discriminator="kind")]


class EncoderConfig(Record):
    path: str = Field("minilm", description="a fetched name, a hub id, or a local folder")
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Literal["mean", "cls"] = "mean"
    normalise: bool = True
    max_tokens: PositiveInt = 256
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    batch_size: PositiveInt = 32


class BuildIndexConfig(Record):
    corpus: CorpusConfig = MiniwikiWorld()
    encoder: EncoderConfig = EncoderConfig()
    index: Literal["flat"] = "flat"
    out: PathText | None = Field(
        None,
        description="folder of the index; not given: indexes/miniwiki, or indexes/ and the name of the corpus file",
    )
    overwrite: bool = False

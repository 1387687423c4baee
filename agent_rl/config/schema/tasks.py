"""Tasks and where their data come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agent_rl.config.schema.record import (
    Fraction,
    NonNegativeFloat,
    PositiveInt,
    Record,
)


class MiniwikiWorld(Record):
    """Which fictional encyclopedia (``tasks.miniwiki``): the same seed and size, the same bytes."""

    kind: Literal["miniwiki"] = "miniwiki"
    seed: int = 0
    passages: Annotated[int, Field(ge=300, le=1_000_000)] = 2000

    @property
    def corpus_name(self) -> str:
        """What an index over it calls its corpus."""
        return f"miniwiki seed={self.seed} passages={self.passages}"


class MiniwikiData(MiniwikiWorld):
    """Questions from the seeded generator of a fictional encyclopedia."""

    question_types: Annotated[
        tuple[Literal["one_hop", "two_hop", "comparison", "yes_no"], ...], Field(min_length=1)
    ] = ("one_hop",)


class JsonlData(Record):
    """Questions from jsonl files with ``id``, ``question``, ``golden_answers`` (Search-R1 / FlashRAG)."""

    kind: Literal["jsonl"] = "jsonl"
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    eval_fraction: Fraction = Field(
        0.2, description="share of `train` held out by a seeded hash where dev or test is not given"
    )


class SearchTask(Record):
    kind: Literal["search"] = "search"
    data: Annotated[MiniwikiData | JsonlData, Field(discriminator="kind")] = MiniwikiData()
    prompt: Literal["brief", "full"] = "full"
    reward: Literal["em_pm1", "em", "f1"] = Field("em_pm1", description="em_pm1: +1 / -1 (Eq. 14); em: 1 / 0")
    format_bonus: NonNegativeFloat = Field(0.0, description="added where the tags are complete and in order")
    no_search_penalty: NonNegativeFloat = Field(0.0, description="taken off where the answer came without a search")
    top_k: PositiveInt = Field(3, description="documents asked for per search")


TaskConfig = SearchTask

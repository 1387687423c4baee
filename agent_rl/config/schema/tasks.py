"""Tasks and where their data come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agent_rl.config.schema.record import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveInt,
    Record,
)


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


# Files of a data set, each a path or hf://datasets/<owner>/<name>/<file>; one may be given without brackets.
FileList = Annotated[tuple[PathText, ...], BeforeValidator(_as_tuple)]


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
    prompt: Literal["brief", "full", "hermes", "dataset"] = Field(
        "full", description="hermes: for the model's own function calling; dataset: the row's own prompt, untouched"
    )
    reward: Literal["em_pm1", "em", "f1"] = Field("em_pm1", description="em_pm1: +1 / -1 (Eq. 14); em: 1 / 0")
    format_bonus: NonNegativeFloat = Field(0.0, description="added where the tags are complete and in order")
    no_search_penalty: NonNegativeFloat = Field(0.0, description="taken off where the answer came without a search")
    top_k: PositiveInt = Field(3, description="documents asked for per search")


class GeneratedPuzzles(Record):
    """Puzzles from the seeded generator (``tasks.kk.generator``); the numbers are for each size in ``people``."""

    kind: Literal["generated"] = "generated"
    seed: int = 0
    people: Annotated[tuple[Annotated[int, Field(ge=2, le=8)], ...], Field(min_length=1)] = (3, 4, 5, 6, 7)
    depth: Annotated[int, Field(ge=2)] = Field(2, description="how deep statements nest")
    width: Annotated[int, Field(ge=2)] = Field(2, description="parts of an `and` or `or`")
    train: PositiveInt = 900
    dev: PositiveInt = 100
    test: PositiveInt = 100


class PuzzleFiles(Record):
    """Puzzles of files with ``quiz``, ``names``, ``solution`` (Logic-RL's parquet, or jsonl)."""

    kind: Literal["files"] = "files"
    train: FileList = ()
    dev: FileList = ()
    test: FileList = ()


class KKTask(Record):
    kind: Literal["kk"] = "kk"
    data: Annotated[GeneratedPuzzles | PuzzleFiles, Field(discriminator="kind")] = GeneratedPuzzles()
    prompt: Literal["brief", "full", "dataset"] = "full"
    prefill_think: bool = Field(False, description="the prompt ends in <think>")


class GeneratedProblems(Record):
    """Small problems of arithmetic and algebra from a seed (``tasks.math.generator``)."""

    kind: Literal["generated"] = "generated"
    seed: int = 0
    largest: Annotated[int, Field(ge=10)] = Field(20, description="about how large the numbers are")
    train: PositiveInt = 2000
    dev: PositiveInt = 200
    test: PositiveInt = 200


class ProblemFiles(Record):
    """Problems of files with ``problem`` and ``answer`` or ``answers`` (what `data prepare` writes, or verl's
    parquet)."""

    kind: Literal["files"] = "files"
    train: FileList = ()
    dev: FileList = ()
    test: FileList = ()


class MathTask(Record):
    kind: Literal["math"] = "math"
    data: Annotated[GeneratedProblems | ProblemFiles, Field(discriminator="kind")] = GeneratedProblems()
    prompt: Literal["brief", "full", "dataset"] = "full"
    prefill_think: bool = Field(False, description="the prompt ends in <think>")
    answer_in: Literal["boxed", "tags"] = Field("boxed", description=r"boxed: the last \boxed{}; tags: <answer>")
    grader: Literal["math_verify", "normalised_string", "either"] = "math_verify"
    deadline_s: PositiveFloat = Field(5.0, description="seconds for one comparison; longer: score 0, marked timeout")
    workers: NonNegativeInt = Field(0, description="processes that compare (0: one a processor)")


class PluginTask(Record):
    """A task of your own: see docs/adding_a_task.md."""

    kind: Literal["plugin"] = "plugin"
    path: str = Field("", description="file.py:Class, package.module:Class, or the name of an entry point")
    settings: dict[str, Any] = Field({}, description="keyword arguments of the class")


TaskConfig = Annotated[SearchTask | KKTask | MathTask | PluginTask, Field(discriminator="kind")]

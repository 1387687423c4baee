"""Benchmarks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agent_rl.config.schema.index import EncoderConfig
from agent_rl.config.schema.record import NonNegativeInt, PathText, PositiveFloat, PositiveInt, Record
from agent_rl.config.schema.serve import PythonToolConfig


class BenchSandboxConfig(Record):
    """`agent-rl bench sandbox`."""

    concurrency: Annotated[tuple[PositiveInt, ...], Field(min_length=1, description="callers at once")] = (1, 8, 32)
    calls: PositiveInt = Field(200, description="calls of each way and number of callers, in each round")
    rounds: PositiveInt = 3
    python: PythonToolConfig = PythonToolConfig()
    out: PathText | None = Field(None, description="file for the figures, as JSON")


Kind = Literal["flat", "flat_fp16", "sq8", "ivf_sq8", "hnsw", "ivf_pq", "opq_ivf_pq"]


class BenchIndexConfig(Record):
    """`agent-rl bench index`."""

    corpus: PathText = Field("data/miniwiki/corpus.jsonl", description="as for build-index")
    encoder: EncoderConfig = EncoderConfig()
    passages: PositiveInt = Field(2048, description="the first so many of the corpus")
    rounds: PositiveInt = 3
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)] = ("flat", "flat_fp16", "sq8", "ivf_sq8", "hnsw")
    out: PathText | None = Field(None, description="file for the figures, as JSON")


RetrievalWay = Literal[
    "ours_float32",
    "ours_bfloat16",
    "ours_openvino_float32",
    "ours_openvino_bfloat16",
    "per_request_float32",
    "per_request_bfloat16",
]


class BenchRetrievalConfig(Record):
    """`agent-rl bench retrieval`."""

    index: PathText = Field("indexes/miniwiki", description="what the servers search; needs a flat dense part")
    questions: PathText | None = Field(None, description="JSON lines with `question`; null: titles of the index")
    ways: tuple[RetrievalWay, ...] = Field(
        ("ours_float32", "ours_bfloat16", "per_request_float32", "per_request_bfloat16"),
        description="servers to start; ours_openvino_* need the extra openvino",
    )
    url: str | None = Field(None, description="a running server with POST /retrieve, measured beside them")
    clients: Annotated[tuple[PositiveInt, ...], Field(min_length=1, description="clients at once, a query each")] = (
        1,
        8,
        32,
        128,
    )
    seconds: PositiveFloat = Field(10.0, description="load of each server and number of clients, in each round")
    rounds: PositiveInt = 3
    topk: PositiveInt = 3
    bulk: NonNegativeInt = Field(
        512, description="queries of somebody's request, beside which singles are timed; 0: no"
    )
    core: NonNegativeInt | None = Field(None, description="which the servers share; null: the last one")
    out: PathText | None = Field(None, description="file for the figures, as JSON")


class BenchReportConfig(Record):
    """`agent-rl bench report`."""

    run_dir: PathText = Field("runs/demo", description="a run directory with trajectories, which are repeated")
    steps: PositiveInt = 1000
    trajectories_per_step: PositiveInt = 50
    openings: PositiveInt = Field(5, description="times that the page is opened in a browser, where there is one")
    out: PathText | None = Field(None, description="file for the figures, as JSON")

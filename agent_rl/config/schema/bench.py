"""Benchmarks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agent_rl.config.schema.index import EncoderConfig
from agent_rl.config.schema.model import ModelConfig
from agent_rl.config.schema.record import NonNegativeInt, PathText, PositiveFloat, PositiveInt, Record
from agent_rl.config.schema.sampler import HFSamplerConfig
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
    "ours_onnx_float32",
    "ours_openvino_float32",
    "ours_openvino_bfloat16",
    "ours_openvino_int8",
    "per_request_float32",
    "per_request_bfloat16",
]


class BenchRetrievalConfig(Record):
    """`agent-rl bench retrieval`."""

    index: PathText = Field("indexes/miniwiki", description="what the servers search; needs a flat dense part")
    questions: PathText | None = Field(None, description="JSON lines with `question`; null: titles of the index")
    ways: tuple[RetrievalWay, ...] = Field(
        ("ours_float32", "ours_bfloat16", "per_request_float32", "per_request_bfloat16"),
        description="servers to start; ours_onnx_* and ours_openvino_* need the extra of that name",
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


RolloutEngine = Literal["hf", "vllm", "lockstep"]


class BenchRolloutConfig(Record):
    """`agent-rl bench rollout`: two-turn search episodes of fixed lengths."""

    model: ModelConfig = ModelConfig()
    sampler: HFSamplerConfig = HFSamplerConfig()
    engines: Annotated[
        tuple[RolloutEngine, ...],
        Field(min_length=1, description="the first is compared with each of the others"),
    ] = ("hf", "lockstep")
    latency_engines: tuple[RolloutEngine, ...] = Field(("hf",), description="those measured with latencies_s too")
    in_flight: Annotated[tuple[PositiveInt, ...], Field(min_length=1, description="trajectories at once")] = (32, 64)
    latencies_s: tuple[PositiveFloat, ...] = Field(
        (0.2, 2.0), description="mean seconds of a tool call (exponential), at the most in flight; beside none"
    )
    episodes: PositiveInt = Field(256, description="trajectories of a run; more than in flight, to keep it full")
    group_size: PositiveInt = Field(8, description="trajectories with one prompt")
    prompt_tokens: PositiveInt = 90
    query_tokens: PositiveInt = 12
    observation_tokens: PositiveInt = 90
    answer_tokens: PositiveInt = 8
    rounds: PositiveInt = 3
    threads: NonNegativeInt = Field(0, description="CPU threads of torch (0: torch's own choice)")
    out: PathText | None = Field(None, description="file for the figures, as JSON")

    @model_validator(mode="after")
    def _has_meaning(self) -> BenchRolloutConfig:
        faults = []
        if self.episodes % self.group_size:
            faults.append(f"episodes={self.episodes} are no whole groups of group_size={self.group_size}")
        if len(set(self.engines)) < len(self.engines):
            faults.append(f"engines=[{','.join(self.engines)}] names one twice")
        if self.latencies_s and not set(self.latency_engines) <= set(self.engines):
            faults.append(f"latency_engines=[{','.join(self.latency_engines)}] names one that is not in engines")
        if faults:
            raise ValueError("; ".join(faults))
        return self

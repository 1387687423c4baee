"""Serving tools: the server, and each tool's own settings."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from agent_rl.config.schema.index import onnx_computes_in_float32
from agent_rl.config.schema.record import (
    NonNegativeFloat,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveInt,
    Record,
)

ToolName = Literal["search", "python", "sql"]
Names = TypeVar("Names", bound=tuple[str, ...] | None)


def each_once(names: Names) -> Names:
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"[{','.join(names)}] names a tool twice")
    return names


class SearchToolConfig(Record):
    max_batch: PositiveInt = 64
    max_queue: PositiveInt = 1024
    max_top_k: Annotated[int, Field(gt=0, le=2048)] = 100
    max_query_chars: PositiveInt = 2000
    cache_entries: NonNegativeInt = 10_000
    mode: Literal["dense", "bm25", "hybrid"] | None = Field(
        None, description="hybrid: both, by reciprocal rank fusion; null: dense where the index is, else bm25"
    )
    mmap: bool = Field(False, description="leave the vectors on disk: less memory, slower searches")
    scan: Literal["auto", "faiss", "bfloat16"] = Field(
        "auto", description="bfloat16: a flat index in two passes with the rows of an exact search; auto: where it pays"
    )
    engine: Literal["torch", "onnx", "openvino", "openvino_int8"] = Field(
        "torch",
        description="what runs the encoder, for queries; onnx: in float32; openvino_int8: with 8-bit matrix products",
    )
    dtype: Literal["auto", "float32", "bfloat16"] | None = Field(
        None, description="what the encoder computes queries in; null: as the index was built"
    )
    replicas: PositiveInt = Field(1, description="encoders that work side by side and share the cores (mode=dense)")
    rerank: str | None = Field(None, description="a cross-encoder (folder or hub id) that orders the first hits anew")
    rerank_depth: PositiveInt = Field(50, description="hits that the cross-encoder reads")

    @model_validator(mode="after")
    def _can_be_computed(self) -> SearchToolConfig:
        onnx_computes_in_float32(self.engine, self.dtype)
        return self


class PythonToolConfig(Record):
    """Limits of a call hold for each call; the others for the interpreter that a session keeps."""

    engine: Literal["local", "remote"] = Field("local", description="remote: a SandboxFusion-compatible service")
    url: str | None = Field(None, description="of the service, for engine=remote")
    isolation: Literal["auto", "namespaces", "landlock", "none"] = Field(
        "auto", description="auto: the strongest that this machine gives, or the server does not start"
    )
    allow_unsafe: bool = Field(False, description="run the code unprotected where it cannot be isolated")
    preload: tuple[str, ...] = Field(("numpy",), description="modules imported once, before any call")
    stateful: bool = Field(True, description="definitions and files stay from call to call of one trajectory")
    workers: NonNegativeInt = Field(0, description="calls that run at once (0: one a core)")
    max_queue: PositiveInt = 1024
    warm: NonNegativeInt | None = Field(None, description="sandboxes that wait for a call (null: one a worker)")
    max_sessions: PositiveInt = 256
    session_idle_s: PositiveFloat = Field(900.0, description="a session without a call for so long is ended")
    timeout_s: PositiveFloat = Field(10.0, description="wall clock of one call; waiting for a worker is not counted")
    cpu_s: PositiveFloat = Field(10.0, description="processor time of one call, all its threads and processes")
    memory_mb: PositiveInt = Field(512, description="on top of the warm interpreter")
    processes: PositiveInt = Field(32, description="threads counted too")
    disk_mb: PositiveInt = 64
    file_mb: PositiveInt = 64
    files: PositiveInt = 4096
    output_bytes: PositiveInt = Field(16_384, description="kept of what a call prints: the beginning and the end")
    max_code_bytes: PositiveInt = 262_144

    @model_validator(mode="after")
    def _has_meaning(self) -> PythonToolConfig:
        if (self.engine == "remote") != (self.url is not None):
            raise ValueError("engine=remote and url=http://... (of the service) go together")
        if self.isolation == "none" and not self.allow_unsafe:
            raise ValueError("isolation=none runs the model's code as you; it needs allow_unsafe=true")
        return self


class SqlToolConfig(Record):
    databases: dict[str, str] = Field({}, description="name: file (SQLite or DuckDB); the first is asked by default")
    timeout_s: PositiveFloat = 10.0
    max_rows: PositiveInt = Field(100, description="rows of an answer; more are cut, with a mark")
    max_query_chars: PositiveInt = 10_000
    output_bytes: PositiveInt = 16_384
    memory_mb: PositiveInt = Field(256, description="for one statement")
    workers: PositiveInt = Field(4, description="statements that run at once")
    max_queue: PositiveInt = 1024


# Settings that have no meaning under the other engine
LOCAL_ONLY = ("log", "access_log")
RAY_ONLY = ("replicas", "max_replicas", "target_ongoing_requests", "replica_cpus", "replica_gpus", "ray_address")


class ServeToolsConfig(Record):
    tools: Annotated[tuple[ToolName, ...], Field(min_length=1)] = ("search",)
    index: PathText = "indexes/miniwiki"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8900
    token_file: str | None = None
    max_body_bytes: PositiveInt = 4 * 2**20
    log: Literal["text", "json"] = Field("text", description="json: every line on stderr is one JSON object")
    access_log: bool = Field(False, description="a log line for each answered request: status, times, calls by tool")
    engine: Literal["local", "ray"] = Field("local", description="ray: replicas of Ray Serve; local: this process")
    replicas: PositiveInt = Field(1, description="for engine=ray: processes, each of which loads the tools")
    max_replicas: PositiveInt | None = Field(
        None, description="for engine=ray: Ray starts more of them under load, up to this many, and ends them after it"
    )
    target_ongoing_requests: PositiveInt = Field(
        64,
        description="for max_replicas: requests that a replica works on or keeps waiting; more of them ask for another",
    )
    replica_cpus: PositiveFloat = Field(1.0, description="for engine=ray: cores that a replica has")
    replica_gpus: NonNegativeFloat = Field(0.0, description="for engine=ray: GPUs, or a part of one")
    ray_address: str | None = Field(
        None, description="auto or host:port of a Ray cluster; null: $RAY_ADDRESS, else a Ray of its own"
    )
    search: SearchToolConfig = SearchToolConfig()
    python: PythonToolConfig = PythonToolConfig()
    sql: SqlToolConfig = SqlToolConfig()

    @field_validator("tools")
    @classmethod
    def _each_once(cls, tools: tuple[ToolName, ...]) -> tuple[ToolName, ...]:
        return each_once(tools)

    @model_validator(mode="after")
    def _has_databases(self) -> ServeToolsConfig:
        if "sql" in self.tools and not self.sql.databases:
            raise ValueError("tools=[sql] needs sql.databases={name: file}")
        return self

    @model_validator(mode="after")
    def _fits_its_engine(self) -> ServeToolsConfig:
        fields = type(self).model_fields
        strangers = RAY_ONLY if self.engine == "local" else LOCAL_ONLY
        if given := [name for name in strangers if getattr(self, name) != fields[name].default]:
            why = "they are those of engine=ray" if self.engine == "local" else "Ray Serve keeps logs of its own"
            raise ValueError(f"engine={self.engine} has no {' and no '.join(given)}: {why}")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas={self.max_replicas} is below replicas={self.replicas}, which are always there"
            )
        if self.engine == "ray" and self.port == 0:
            raise ValueError("engine=ray takes no free port (port=0): every node listens on the same; give one")
        return self

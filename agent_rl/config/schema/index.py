"""Building an index."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agent_rl.config.schema.record import (
    PathText,
    PositiveFloat,
    PositiveInt,
    Record,
)
from agent_rl.config.schema.tasks import MiniwikiWorld


class FileCorpus(Record):
    kind: Literal["file"] = "file"
    path: str = Field(description="jsonl, tsv (both also .gz, .zst) or parquet; or a folder of such files")


CorpusConfig = Annotated[MiniwikiWorld | FileCorpus, Field(discriminator="kind")]


def onnx_computes_in_float32(engine: str, dtype: str | None) -> None:
    """Raises ValueError where it is to compute in something else."""
    if engine == "onnx" and dtype == "bfloat16":
        raise ValueError("engine=onnx computes in float32; set dtype=float32, or engine=openvino for bfloat16")


class EncoderConfig(Record):
    path: str = Field("minilm", description="a fetched name, a hub id, or a local folder")
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Literal["mean", "cls"] = "mean"
    normalise: bool = True
    max_tokens: PositiveInt = 256
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    batch_size: PositiveInt = 32
    workers: PositiveInt = Field(1, description="processes (a GPU each, where there are GPUs) that encode passages")
    engine: Literal["torch", "onnx", "openvino"] = Field(
        "torch", description="what runs the model; onnx (in float32) and openvino on a CPU"
    )

    @model_validator(mode="after")
    def _can_be_computed(self) -> EncoderConfig:
        onnx_computes_in_float32(self.engine, self.dtype)
        return self


class IndexConfig(Record):
    kind: Literal["flat", "flat_fp16", "sq8", "ivf_sq8", "hnsw", "ivf_pq", "opq_ivf_pq", "auto", "factory", "bm25"] = (
        "flat"
    )
    factory: str | None = Field(None, description="a FAISS factory string, for kind=factory: IVF4096,PQ64")
    nprobe: PositiveInt | None = Field(None, description="lists that a search visits; null: 64, or all of fewer")
    ef_search: PositiveInt | None = Field(None, description="candidates of a search in an HNSW graph; null: 128")
    bm25: bool = Field(False, description="a Lucene index beside the dense one, for search.mode=bm25 and hybrid")

    @model_validator(mode="after")
    def _factory_goes_with_its_kind(self) -> IndexConfig:
        if (self.kind == "factory") != (self.factory is not None):
            raise ValueError("kind=factory and factory='...' (a FAISS factory string) go together")
        return self


class BuildIndexConfig(Record):
    corpus: CorpusConfig = MiniwikiWorld()
    encoder: EncoderConfig = EncoderConfig()
    index: IndexConfig = IndexConfig()
    memory_gb: PositiveFloat | None = Field(None, description="GiB that the index may take, for index=auto")
    engine: Literal["local", "ray"] = Field("local", description="ray: encoder.workers actors of Ray Data")
    from_index: PathText | None = Field(
        None, description="an existing FAISS file (e5_Flat.index) to take in place of encoding the corpus"
    )
    out: PathText | None = Field(
        None,
        description="folder of the index; not given: indexes/miniwiki, or indexes/ and the name of the corpus file",
    )
    overwrite: bool = False

    @model_validator(mode="after")
    def _has_a_memory_for_auto(self) -> BuildIndexConfig:
        if (self.index.kind == "auto") != (self.memory_gb is not None):
            raise ValueError("index=auto and memory_gb=... (GiB that the index may take) go together")
        if self.from_index is not None and self.index.kind != "flat":
            raise ValueError(f"from_index: the file decides the kind; leave out index={self.index.kind}")
        if self.engine == "ray" and self.from_index is not None:
            raise ValueError("engine=ray encodes, and from_index=... has nothing to encode; drop one of the two")
        if self.engine == "local" and self.encoder.workers > 1 and self.encoder.engine != "torch":
            raise ValueError(
                f"encoder.workers={self.encoder.workers}: worker processes encode with torch; leave out "
                f"encoder.engine={self.encoder.engine} or encoder.workers, or set engine=ray, whose workers run it"
            )
        return self

"""Text to vectors, through sentence-transformers.

An :class:`EncoderSpec` is everything that decides what vector a text gets, beside the weights themselves; it
goes whole into an index's manifest, with a fingerprint of the weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from retrieval_index.batches import CPU_BATCH_TOKENS, batches_by_length, padded
from retrieval_index.converted import Forward
from retrieval_index.download import sha256_of
from retrieval_index.errors import EncoderError
from retrieval_index.fetch import offline, resolve_encoder_path

# Passages that a worker process is given at once
POOL_CHUNK = 256

# What runs the model: how, and not what, it computes, so that an index does not record it
Engine = Literal["torch", "onnx", "openvino", "openvino_int8"]
Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """``path``: a fetched name, a local folder, or a hub id. ``dtype`` is that of the weights; ``auto`` takes
    bfloat16 where the processor computes in it (AVX512-BF16, AMX, CUDA) and the engine can (onnx cannot), else float32.
    """

    path: str = "minilm"
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Literal["mean", "cls"] = "mean"
    normalise: bool = True
    max_tokens: int = 256
    dtype: Dtype = "auto"


@runtime_checkable
class TextEncoder(Protocol):
    """What an index needs of an encoder. ``encode_*`` return float32 [B, D] in the order of the texts. ``computes`` is
    what runs it and in which precision, for people: "torch, bfloat16".
    """

    spec: EncoderSpec
    fingerprint: str
    dims: int
    computes: str

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray: ...

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray: ...


def prefixed(text: str, prefix: str) -> str:
    """``text`` with ``prefix`` in front, once: callers of E5 models often add it themselves."""
    return text if text.startswith(prefix) else prefix + text


class Encoder:
    """A sentence-transformers model. Not safe for use by several threads at once: give it one owner.

    ``workers`` above 1: passages are encoded by so many processes of sentence-transformers' pool (on one GPU each,
    where there are GPUs), started at first use and ended by :meth:`close`. Queries stay in this process.
    Such a pool encodes with torch, and other engines run in this process, on its CPU.
    """

    def __init__(self, spec: EncoderSpec, *, batch_size: int = 32, workers: int = 1, engine: Engine = "torch") -> None:
        """Loads the model. Raises EncoderError (cannot be loaded as specified, or not run so by ``engine``),
        UnknownEncoder, FetchError.
        """
        if workers > 1 and engine != "torch":
            raise EncoderError(
                f"encoder.workers={workers}: worker processes encode with torch; leave out encoder.engine={engine}, or "
                "encoder.workers"
            )
        self.spec = spec
        self._batch_size, self._workers, self._engine = batch_size, workers, engine
        self._pool: Any = None
        self.folder = _local_folder(resolve_encoder_path(spec.path))
        self.fingerprint = weights_fingerprint(self.folder)
        dtype = _dtype(spec, engine)
        self.computes = f"{engine}, {str(dtype).removeprefix('torch.')}"
        self._forward: Forward = self._torch_forward
        if engine == "torch":
            self._model = _load(self.folder, spec, dtype)
        else:
            import torch

            self._model = _load(self.folder, spec, torch.float32).to("cpu")
            self._forward = _converted(self._model, dtype, engine)
        self.dims: int = self._model.get_embedding_dimension()

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """float32 [B, D]. Raises ValueError on an empty query: some models give it a vector of NaN."""
        return self._encode(queries, self.spec.query_prefix, "query")

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        """float32 [B, D]. Raises ValueError on an empty passage, EncoderError with 8 bits: what they lose would stay in
        the index, which does not record what made its vectors.
        """
        if self._engine == "openvino_int8":
            raise EncoderError("engine=openvino_int8 is for queries; encode passages with torch, onnx or openvino")
        if self._workers > 1 and self._pool is None:
            self._pool = _started_pool(self._model, self._workers)
        return self._encode(passages, self.spec.passage_prefix, "passage", self._pool)

    def replica(self) -> Encoder:
        """The same once more, for another owner."""
        return Encoder(self.spec, batch_size=self._batch_size, engine=self._engine)

    @property
    def sentence_transformer(self) -> Any:
        """The model itself, for who wants to compare."""
        return self._model

    def close(self) -> None:
        """End the worker processes, where there are any."""
        if self._pool is not None:
            self._model.stop_multi_process_pool(self._pool)
            self._pool = None

    def _encode(self, texts: Sequence[str], prefix: str, what: str, pool: Any = None) -> np.ndarray:
        for place, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"{what} {place} of {len(texts)} is empty; leave it out")
        if not texts:
            return np.zeros((0, self.dims), dtype=np.float32)
        full = [prefixed(text, prefix) for text in texts]
        if pool is None:
            vectors = self._in_batches(full)
        else:
            # the same pieces whatever the number of workers: a resumed build must pad as the first one did
            vectors = self._model.encode(
                full, batch_size=self._batch_size, show_progress_bar=False, pool=pool, chunk_size=POOL_CHUNK
            ).astype(np.float32, copy=False)
        return normalised(vectors) if self.spec.normalise else vectors

    def _in_batches(self, texts: list[str]) -> np.ndarray:
        """float32 [B, D]. Batches of our own: those of sentence-transformers have a fixed number of texts, whatever
        their length, and cost milliseconds each beside the model, which single queries would pay.
        """
        tokenizer: Any = self._model.tokenizer
        ids = tokenizer(texts, truncation=True, max_length=self.spec.max_tokens)["input_ids"]
        budget = CPU_BATCH_TOKENS if self._model.device.type == "cpu" else None
        vectors = np.empty((len(texts), self.dims), dtype=np.float32)
        for batch in batches_by_length([len(text) for text in ids], self._batch_size, budget):
            vectors[batch] = self._forward(*padded([ids[place] for place in batch], tokenizer.pad_token_id))
        return vectors

    def _torch_forward(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        import torch

        features = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
        with torch.inference_mode():
            out = self._model({name: value.to(self._model.device) for name, value in features.items()})
        pooled: np.ndarray = out["sentence_embedding"].float().cpu().numpy()
        return pooled


def _started_pool(model: Any, workers: int) -> Any:
    import torch

    gpus = torch.cuda.device_count()
    if gpus and workers > gpus:
        raise EncoderError(f"encoder.workers={workers}: this machine has {gpus} GPUs; give at most as many")
    devices = [f"cuda:{gpu}" for gpu in range(workers)] if gpus else ["cpu"] * workers
    before = os.environ.get("OMP_NUM_THREADS")
    if not gpus:  # each would take every core
        os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // workers))
    try:
        return model.start_multi_process_pool(devices)
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length, float32 [B, D]; computed in float32, as bfloat16 would leave lengths 0.4 % off."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return vectors / norms  # a zero vector becomes NaN, which no index accepts


def weights_fingerprint(folder: Path) -> str:
    """sha256 of the model's safetensors file (of the sums of all, where it is in several)."""
    sums = [sha256_of(path) for path in sorted(folder.glob("*.safetensors"))]
    if not sums:
        raise EncoderError(f"{folder} has no *.safetensors weights; save the model in that format")
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def _local_folder(path: str) -> Path:
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                path,
                allow_patterns=["*.json", "*.txt", "*.model", "*.safetensors"],
                ignore_patterns=["onnx/*", "openvino/*"],
                local_files_only=offline(),
            )
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if offline():
            raise EncoderError(
                f"encoder.path={path!r} has not been downloaded yet, and AGENT_RL_OFFLINE forbids it; "
                "unset AGENT_RL_OFFLINE, or give a local folder"
            ) from error
        raise EncoderError(f"encoder.path={path!r} cannot be had from the hub: {error}") from error


def _load(folder: Path, spec: EncoderSpec, dtype: Any) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    try:
        with _quiet_loading():
            loaded = SentenceTransformer(str(folder), local_files_only=True, model_kwargs={"dtype": dtype})
    except Exception as error:  # a damaged folder fails in many ways inside transformers
        raise EncoderError(f"encoder.path={spec.path!r} ({folder}) cannot be loaded: {error}") from error
    extra = [type(module).__name__ for module in loaded][1:]
    if unknown := [name for name in extra if name not in ("Pooling", "Normalize")]:
        raise EncoderError(
            f"encoder.path={spec.path!r} has the modules {', '.join(unknown)} after its transformer; "
            "only transformer, pooling and normalisation are described by an encoder record"
        )
    transformer: Any = loaded[0]
    positions = getattr(transformer.auto_model.config, "max_position_embeddings", None)
    if positions is not None and spec.max_tokens > positions:
        raise EncoderError(f"encoder.max_tokens={spec.max_tokens} is above the {positions} positions of {spec.path!r}")
    transformer.max_seq_length = spec.max_tokens
    # Pooling and normalisation come from the spec, and the prompts that a model's own config may add are left
    # out: two ways of saying the same thing would let them disagree.
    pooling = Pooling(transformer.get_embedding_dimension(), spec.pooling)
    return SentenceTransformer(modules=[transformer, pooling]).eval()


def _converted(model: Any, dtype: Any, engine: Engine) -> Forward:
    if engine == "onnx":
        from retrieval_index.onnx_engine import onnx_forward

        return onnx_forward(model)
    from retrieval_index.openvino_engine import openvino_forward

    return openvino_forward(model, dtype, int8=engine == "openvino_int8")


def _dtype(spec: EncoderSpec, engine: Engine) -> Any:
    """The torch dtype that the model computes in."""
    import torch

    if engine == "onnx":
        if spec.dtype == "bfloat16":
            raise EncoderError(
                "engine=onnx computes in float32, and dtype=bfloat16 was asked for, or is what the index was built in; "
                "set dtype=float32 (search.dtype of a server, encoder.dtype of a build), or use engine=openvino"
            )
        return torch.float32
    if spec.dtype != "auto":
        return getattr(torch, spec.dtype)
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported()
    else:
        processor = torch.cpu.get_capabilities()
        fast = bool(processor.get("avx512_bf16") or processor.get("amx_bf16"))
    return torch.bfloat16 if fast else torch.float32


@contextlib.contextmanager
def _quiet_loading() -> Iterator[None]:
    """transformers draws a bar for the loading of every model; that of a small encoder is noise."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()

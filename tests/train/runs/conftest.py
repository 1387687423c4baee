"""A whole run in miniature: a tiny model with a real tokenizer, miniwiki, a real index behind a real server."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent_rl.config.schema import RunConfig
from agent_rl.train.launch import warmup
from retrieval_index.builder import build_index
from retrieval_index.retriever import Retriever
from retrieval_index.testing import HashedWordsEncoder
from tasks import miniwiki
from tasks.search import SearchTask
from tools.app import create_app
from tools.host import ServerLimits
from tools.protocol import ToolCall, ToolResult
from tools.search import SearchTool
from tools.testing import RunningServer

PASSAGES = 300
DATA = {"kind": "miniwiki", "seed": 0, "passages": PASSAGES, "question_types": ["yes_no"]}


class WatchedSearch(SearchTool):
    """The search tool; ``calls`` counts what reached it, and while ``gate`` is clear nothing is answered.

    A call for which ``breaks`` holds raises, as a tool with a bug would.
    """

    def __init__(self, retriever: Retriever) -> None:
        super().__init__(retriever)
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()
        self.breaks: Callable[[ToolCall], bool] = lambda call: False

    async def run(self, calls: list[ToolCall]) -> list[ToolResult]:
        import asyncio

        self.calls += len(calls)
        while not self.gate.is_set():  # noqa: ASYNC110 - the gate belongs to the test's thread
            await asyncio.sleep(0.002)
        if any(self.breaks(call) for call in calls):
            raise RuntimeError("the tool broke")
        return await super().run(calls)

    async def close(self) -> None:
        self.gate.set()
        await super().close()


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("indexes") / "miniwiki"
    build_index(miniwiki.generate(0, PASSAGES).passages, HashedWordsEncoder(), out, progress=False)
    return out


@pytest.fixture
def serve(index_folder: Path) -> Iterator[Callable[..., tuple[RunningServer, WatchedSearch]]]:
    """Starts servers over the index (``port`` 0: a free one); each is stopped at the end of the test."""
    running: list[tuple[RunningServer, WatchedSearch]] = []

    def start(port: int = 0) -> tuple[RunningServer, WatchedSearch]:
        tool = WatchedSearch(Retriever.open(index_folder, HashedWordsEncoder()))
        # No cache and no batches, so that every call reaches the tool by itself.
        server = RunningServer(create_app(lambda: [tool], ServerLimits(cache_entries=0, max_batch=1)), port)
        server.__enter__()
        running.append((server, tool))
        return server, tool

    yield start
    for server, tool in running:
        tool.gate.set()
        server.kill()


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 400 tokens: any text can be written with it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<eos>")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers, with its tokenizer, as ``model.path`` takes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    task = SearchTask(DATA, prompt="brief")
    items = task.items("train")[:100]
    texts = ["".join(turn.text for turn in task.oracle(item)) + task.messages(item)[0]["content"] for item in items]
    tokenizer = train_tokenizer(texts + [passage.text for passage in miniwiki.generate(0, PASSAGES).passages])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in changes.items():
        found[key] = (
            merged(found[key], value) if isinstance(value, dict) and isinstance(found.get(key), dict) else value
        )
    return found


@pytest.fixture
def settings(model_folder: Path) -> Callable[..., dict[str, Any]]:
    """Values of a small run against the server at ``url``, changed by ``changes`` (nested)."""

    def make(run_dir: Path, url: str, **changes: Any) -> dict[str, Any]:
        base: dict[str, Any] = {
            "task": {"kind": "search", "data": DATA, "prompt": "brief", "top_k": 1},
            "model": {"path": str(model_folder), "dtype": "float32", "device": "cpu", "prompt_format": "plain"},
            "algo": {"kl": {"beta": 0.0}, "token_weight": {"kind": "probability"}},
            "tools": {"url": url, "call_timeout_s": 20},
            "rollout": {
                "max_turns": 3,
                "max_turn_tokens": 40,
                "max_response_tokens": 260,
                "max_observation_tokens": 60,
                "max_prompt_tokens": 100,
                "group_size": 4,
            },
            "train": {
                "steps": 3,
                "prompts_per_step": 3,
                "max_batch_tokens": 1500,
                "checkpoint_every_steps": 1,
                "optim": {"lr": 1e-3},
            },
            # Said here, as the command line's own defaults are others.
            "warmup": {"traces": 0},
            "eval": {"before": False, "after": False, "every_steps": 0},
            "logging": {"tensorboard": False},
            "backend": {"kind": "embedded", "threads": 1},
            "run_dir": str(run_dir),
        }
        return merged(base, changes)

    return make


@pytest.fixture(scope="session")
def warm_folder(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, index_folder: Path) -> Path:
    """The tiny model after a warm-up: it writes searches and answers, right ones about half the time."""
    run_dir = tmp_path_factory.mktemp("runs") / "warm"
    tool = SearchTool(Retriever.open(index_folder, HashedWordsEncoder()))
    with RunningServer(create_app(lambda: [tool])) as server:
        config = RunConfig.model_validate(
            {
                "task": {"kind": "search", "data": DATA, "prompt": "brief", "top_k": 1},
                "model": {"path": str(model_folder), "dtype": "float32", "device": "cpu", "prompt_format": "plain"},
                "tools": {"url": server.url},
                "rollout": {"max_observation_tokens": 60},
                "warmup": {"traces": 100, "epochs": 8, "batch_size": 8, "lr": 5e-3},
                "logging": {"tensorboard": False},
                "backend": {"kind": "embedded", "threads": 1},
                "run_dir": str(run_dir),
            }
        )
        warmup(config, log=print)
    return run_dir / "checkpoints" / "step_000000" / "model"


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def metrics() -> Callable[[Path], list[dict[str, Any]]]:
    return read_metrics


@pytest.fixture
def steps_done() -> Callable[[Path], list[int]]:
    """Steps of the RL lines in metrics.jsonl, in their order."""
    return lambda run_dir: [line["step"] for line in read_metrics(run_dir) if line["phase"] == "train"]


@pytest.fixture
def trajectories() -> Callable[[Path, int], list[dict[str, Any]]]:
    def read(run_dir: Path, step: int) -> list[dict[str, Any]]:
        with gzip.open(run_dir / "trajectories" / f"step_{step:06d}.jsonl.gz", "rt") as file:
            return [json.loads(line) for line in file]

    return read

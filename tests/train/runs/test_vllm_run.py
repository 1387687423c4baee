"""A whole embedded run that samples with vLLM's CPU build (`make test-vllm`)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_rl.config.schema import RunConfig
from agent_rl.evaluation.result import load
from agent_rl.train.launch import train, warmup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: make test-vllm"),
]


@pytest.fixture
def wide_heads(model_folder: Path, tmp_path: Path) -> Path:
    """The tiny random model with heads of 32, the smallest that vLLM's CPU attention knows."""
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    folder = tmp_path / "model"
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model_folder)
    config.head_dim = 32
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)
    return folder


def test_trainer_and_engine_agree_after_every_update(
    tmp_path, serve, settings, wide_heads, metrics, trajectories, steps_done
) -> None:
    server, _ = serve()
    values: dict[str, Any] = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(wide_heads)},
        sampler={"kind": "vllm", "kv_cache_gb": 0.25, "max_batch": 16},
        warmup={"traces": 60, "epochs": 5, "lr": 5e-3},
        eval={"after": True, "questions": 4, "samples": 2},
        train={"steps": 3},
    )
    config = RunConfig.model_validate(values)
    warmup(config, log=print)
    # A run that goes on: its engine starts from the untrained folder again, and is given the checkpoint's weights.
    assert train(config, log=print).step == 3
    assert steps_done(tmp_path / "run") == [1, 2, 3]
    for line in (line for line in metrics(tmp_path / "run") if line["phase"] == "train"):
        assert line["rollout/failed"] == 0
        assert line["rollout/searches_mean"] > 0.5, "the engine has the weights of the warm-up"
        assert line["mismatch/max_abs_logp"] < 2e-3, "float32 on both sides, after every update"
        assert line["sampler/reused_tokens"] > 0
    for step in (1, 3):
        for record in trajectories(tmp_path / "run", step):
            assert record["versions"] == [step - 1 if flag else -1 for flag in record["loss_mask"]]
    after = load(tmp_path / "run" / "eval", "after")
    assert after is not None
    assert after.summary["engine"] == "vllm"
    assert json.loads((tmp_path / "run" / "eval" / "after.json").read_text())["questions"] == 4

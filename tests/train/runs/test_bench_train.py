"""`bench train` on a tiny model: real processes, gradients compared, and the table's figures from them."""

from __future__ import annotations

import json
import re

import pytest

from agent_rl.cli import main

pytestmark = pytest.mark.slow


def test_bench_train(tmp_path, model_folder, capsys) -> None:
    out = tmp_path / "figures.json"
    words = [f"model.path={model_folder}", "model.dtype=float32", "model.device=cpu", "backend.threads=1"]
    small = ["sequences=10", "rounds=1", "scale=1", "shared_prompts=true", "rollout.group_size=4", f"out={out}"]
    assert main(["bench", "train", *words, *small]) == 0
    text = capsys.readouterr().out
    assert re.search(r"10 sequences of 60 to 300 tokens, \d+ of \d+ tokens trained, one prompt for each 4", text)
    assert re.search(r"ours / plain: time \d+\.\d\d .*peak memory \d\.\d\d", text)
    figures = json.loads(out.read_text())
    assert figures["check"]["ours"] < 1e-5
    assert figures["check"]["plain"] < 1e-4, "the peer computes the same"
    (ours,), (plain,) = figures["rounds"]["ours"], figures["rounds"]["plain"]
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert ours["peak_mb"] > 100
    assert 0.2 < figures["trained"] / figures["tokens"] < 0.35


def test_lengths_out_of_order_are_refused(capsys) -> None:
    assert main(["bench", "train", "min_tokens=100", "max_tokens=50"]) == 2
    assert "max_tokens=50 is below min_tokens=100" in capsys.readouterr().err

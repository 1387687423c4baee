"""The benchmark of the report, on a run a tenth as long: what it costs may not grow out of hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from agent_rl.bench.report import bench_report
from agent_rl.config.schema import BenchReportConfig
from agent_rl.errors import UsageError

STEP = {"phase": "train", "step": 1, "reward/mean": 0.5, "objective/grad_norm": 1.0}


def run_of_one_step(folder: Path) -> Path:
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.yaml").write_text("algo: {name: tr_grpo}\n")
    (folder / "metrics.jsonl").write_text(json.dumps(STEP) + "\n")
    authors = [0] * 60 + [1] * 20 + [2] * 50 + [1] * 10
    policy = [author == 1 for author in authors]
    row = {
        **{"step": 1, "split": "train", "item_id": "i", "group": "g", "sample": 0, "question": "Who?", "gold": ["Ann"]},
        **{"ids": list(range(140)), "pieces": [f" word{n}" for n in range(140)], "authors": authors},
        **{"loss_mask": [int(flag) for flag in policy], "logprobs": [-0.3 * flag for flag in policy]},
        **{"weights": [1.1 if flag else None for flag in policy], "trainer_logprobs": None},
        **{"advantage": 1.0, "reward": 1.0, "score_parts": {"em": 1.0}, "stop_reason": "answer", "answer": "Ann"},
        **{"turns": 2, "error": None, "counters": {}, "times": {}},
    }
    (folder / "trajectories" / "step_000001.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    return folder


@pytest.mark.slow
def test_report_of_a_long_run(tmp_path: Path) -> None:
    run = run_of_one_step(tmp_path / "run")
    lines: list[str] = []
    out = tmp_path / "figures.json"
    figures = bench_report(BenchReportConfig(run_dir=str(run), steps=100, openings=1, out=str(out)), lines.append)
    assert json.loads(out.read_text())["tokens"] == figures.tokens == 140 * 5000
    assert figures.trajectories == 5000
    assert figures.peak_memory_mb < 1000
    assert figures.page_mb < 10
    assert figures.make_s < 60
    assert figures.open_s is None or figures.open_s < 10
    assert any(line.startswith("made in") for line in lines)


def test_a_run_without_trajectories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("algo: {name: grpo}\n")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(STEP) + "\n")
    with pytest.raises(UsageError, match="no finished step with trajectories"):
        bench_report(BenchReportConfig(run_dir=str(tmp_path)), print)

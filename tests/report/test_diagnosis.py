"""`agent-rl doctor RUN` on prepared runs: each fault is named, and nothing is said of a healthy one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rl.cli import main
from agent_rl.errors import ArtifactError
from agent_rl.report.diagnosis import diagnose
from agent_rl.report.run_data import read_run

CONFIG: dict[str, Any] = {
    "tools": {"url": "http://127.0.0.1:8900", "names": ["search"]},
    "rollout": {"grammar": "search_r1", "max_turns": 3, "max_turn_tokens": 40, "max_response_tokens": 260},
    "algo": {"token_weight": {"kind": "probability", "form": "multiply"}},
    "model": {"dtype": "bfloat16"},
}


def healthy(step: int) -> dict[str, float]:
    """Rising rewards, falling entropy, two lost rollouts in the whole run, as good runs have them."""
    return {
        "reward/mean": -0.5 + 0.05 * step, "rollout/entropy": 1.0 - 0.04 * step, "objective/grad_norm": 2.0 + step % 3,
        "rollout/logp_correct": -0.5 + 0.01 * step, "rollout/trajectories": 32.0,
        "rollout/failed": float(step in (3, 15)), "tool/failures": 0.0,
        "rollout/uniform_groups": 0.25, "rollout/stop/answer": 0.9, "rollout/stop/max_tokens": 0.1,
        "rollout/count/tool_ok": 30.0, "rollout/count/tool_error": 1.0, "rollout/searches_mean": 1.0,
        "weight/min": 1.0, "weight/max": 1.4, "objective/dead_positive_fraction": 0.0, "mismatch/mean_abs_logp": 0.02,
        "objective/clip_fraction_pos": 0.05, "objective/clip_fraction_neg": 0.05,
    }  # fmt: skip


@pytest.fixture
def prepared(tmp_path: Path, made) -> Callable[..., list]:
    """Diagnoses the healthy run of 20 steps; ``metrics`` changes it from step 8 on, ``rows`` are its last step."""

    def make(metrics: dict[str, float] | None = None, rows: list[dict] | None = None, config: dict | None = None):
        run = tmp_path / "run"
        run.mkdir()
        (run / "config.yaml").write_text(yaml.safe_dump(CONFIG | (config or {})))
        lines = [
            {"phase": "train", "step": step} | healthy(step) | ((metrics or {}) if step >= 8 else {})
            for step in range(1, 21)
        ]
        made.write_jsonl(run / "metrics.jsonl", lines)
        rows = rows if rows is not None else [made.trajectory(20, sample, 1.0, "x") for sample in range(4)]
        made.write_jsonl(run / "trajectories/step_000020.jsonl.gz", rows)
        return diagnose(read_run(run))

    return make


def test_a_healthy_run_is_quiet(prepared) -> None:
    assert prepared() == []


@pytest.mark.parametrize(
    ("name", "metrics", "evidence"),
    [
        ("entropy_low", {"rollout/entropy": 0.001}, "from step 8 on: 0.001 against 0.9"),
        ("entropy_high", {"rollout/entropy": 9.0}, "9 against"),
        ("grad_norm", {"objective/grad_norm": 900.0}, "900 against"),
        ("correct_logp", {"rollout/logp_correct": -3.0}, "-3 against"),
        ("truncated", {"rollout/stop/max_tokens": 1.0}, "100% of the trajectories in steps 11 to 20"),
        ("out_of_turns", {"rollout/stop/max_turns": 0.8}, "rollout.max_turns=3"),
        ("prompt_too_long", {"rollout/stop/prompt_too_long": 0.5}, "50%"),
        ("tool_server", {"tool/failures": 16.0, "rollout/failed": 16.0}, "160 of 320 trajectories"),
        ("lost_rollouts", {"rollout/failed": 16.0}, "160 of 320 trajectories"),
        ("failing_calls", {"rollout/count/tool_error": 40.0, "rollout/count/tool_ok": 10.0}, "of 500 calls"),
        ("no_calls", {"rollout/count/tool_error": 0.0, "rollout/count/tool_ok": 0.0}, "though some did before"),
        (
            "constant_weight",
            {"weight/min": 1.0, "weight/max": 1.0},
            "has the weight 1 (algo.token_weight.kind=",
        ),
        ("dead_positives", {"objective/dead_positive_fraction": 0.9}, "90%"),
        ("clipped", {"objective/clip_fraction_neg": 0.7}, "70% of the tokens with negative advantage"),
        ("uniform_groups", {"rollout/uniform_groups": 0.95}, "95%"),
        ("mismatch", {"mismatch/mean_abs_logp": 0.2}, "0.200 nats a token"),
    ],
)
def test_each_fault_is_named_alone(prepared, name, metrics, evidence) -> None:
    (finding,) = prepared(metrics)
    assert finding.name == name
    assert evidence in finding.evidence
    assert finding.meaning


def test_constant_weight_is_no_fault_where_none_was_asked_for(prepared) -> None:
    metrics = {"weight/min": 1.0, "weight/max": 1.0}
    assert prepared(metrics, config={"algo": {"token_weight": {"kind": "none"}}}) == []


def talking(made, text: list[str], sample: int) -> dict:
    size = len(text)
    about = {"authors": [0] + [1] * (size - 1), "loss_mask": [0] + [1] * (size - 1), "ids": [0] * size}
    numbers = {"logprobs": [-0.1] * size, "weights": [None] + [1.0] * (size - 1), "trainer_logprobs": None}
    return made.trajectory(20, sample, 1.0, "x", pieces=text, **about, **numbers)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (["q", "<search>", "x", "</search>", " <information>", " invented", " result"], ["stop_string"]),
        (["q", "<answer>", "x", "</answer>", "<eos>"], []),
        (["q", "<think>", "then </search> and on and on", "</think>", "<answer>x</answer>"], []),
        (["q", "<search>", "x", "</search>\n"], []),
    ],
)
def test_wrong_stop_string(prepared, made, text, names) -> None:
    rows = [talking(made, text, sample) for sample in range(4)]
    assert [finding.name for finding in prepared(rows=rows)] == names


def test_other_grammars_have_other_ends(prepared, made) -> None:
    text = ["q", "<search>", "x", "</search>", " and so it goes on in prose"]
    rows = [talking(made, text, sample) for sample in range(4)]
    assert prepared(rows=rows, config={"rollout": {"grammar": "hermes"}}) == []


@pytest.mark.parametrize("place", [4, 7])
def test_a_wrong_mask_is_named(prepared, made, place) -> None:
    row = made.trajectory(20, 0, 1.0, "x")
    row["loss_mask"][place] = 1 - row["loss_mask"][place]
    (finding,) = prepared(rows=[row])
    assert finding.name == "mask"
    assert f"token {place}" in finding.evidence


def test_an_evaluation_that_fell(tmp_path, made) -> None:
    run = made.run(tmp_path / "run")
    (run / "eval/comparison.json").write_text(json.dumps({"greedy_em": {"mean": -0.2, "low": -0.3, "high": -0.1}}))
    assert [finding.name for finding in diagnose(read_run(run))] == ["worse"]


def test_the_command_tells_all_runs(tmp_path, made, capsys) -> None:
    good, bad = made.run(tmp_path / "good"), made.run(tmp_path / "bad")
    with (bad / "metrics.jsonl").open("a") as file:
        for step in range(13, 24):
            file.write(json.dumps({"phase": "train", "step": step, "rollout/stop/max_tokens": 1.0}) + "\n")
    assert main(["doctor", str(good), str(bad)]) == 0
    out = capsys.readouterr().out
    assert f"{good}: 12 steps; nothing looks wrong" in out
    assert f"{bad}: 23 steps\n  truncated: 100% of the trajectories in steps 14 to 23" in out
    assert main(["doctor", str(good), "seed=1"]) == 2
    assert "seed=1 has no effect on a run" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path / "none")]) == 2


def test_a_broken_trajectory_file_is_named(tmp_path, made) -> None:
    run = made.run(tmp_path / "run")
    made.write_jsonl(run / "trajectories/step_000099.jsonl.gz", [made.trajectory(99, 0, 1.0, "x", authors=[7] * 10)])
    with pytest.raises(ArtifactError, match="should hold 0, 1 and 2"):
        diagnose(read_run(run))

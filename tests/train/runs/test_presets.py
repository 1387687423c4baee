"""Every preset trains on the demo's task in miniature, and its metrics show its mechanism at work."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import configs
from agent_rl.config.compose import compose
from agent_rl.config.schema import RunConfig
from agent_rl.errors import TrainingError
from agent_rl.train.checkpoint import find_checkpoints
from agent_rl.train.launch import train

pytestmark = pytest.mark.slow

PRESETS = sorted(file.stem for file in (Path(configs.__file__).parent / "algo").glob("*.yaml"))
ON_POLICY = pytest.approx(1.0, abs=1e-5)


def at_work(name: str, found: dict[str, float], asked: int) -> None:
    """What tells this preset from GRPO, in one step's metrics."""
    match name:
        case "tr_grpo" | "grpo_sg":
            assert 1 <= found["weight/min"] < found["weight/mean"] < found["weight/max"] == pytest.approx(1.4)
            assert 0 < found["weight/at_upper"] < 1
            assert found["objective/dead_positive_fraction"] == 0
        case "tr_grpo_eq9":
            assert found["objective/dead_positive_fraction"] > 0.2
            assert found["weight/max"] == pytest.approx(1.4)
        case "tr_grpo_literal":
            assert found["weight/min"] == found["weight/max"] == 1
        case "tr_grpo_reverse":
            assert found["weight/min"] == pytest.approx(0.6)
            assert found["weight/max"] <= 1
        case "tr_grpo_random":
            assert 0.5 <= found["weight/min"] < 0.6
            assert 1.4 < found["weight/max"] <= 1.5
            assert found["weight/mean"] == pytest.approx(1, abs=0.1)
        case "grpo" | "tr_grpo_equal" | "dr_grpo" | "rloo" | "reinforce_pp" | "cispo" | "gspo":
            assert found["weight/min"] == found["weight/max"] == 1
        case "ar":
            assert 0.8 <= found["weight/min"] < found["weight/max"] <= 1
        case "lopti" | "ar_lopti":
            assert 0 < found["filter/low_fraction"] < 1
            assert found["filter/low_fraction"] + found["filter/high_fraction"] == pytest.approx(1)
            # The second update meets a policy that the first has changed.
            assert found["objective/ratio_max"] > 1 + 1e-4
            assert found["weight/min"] < 1 if name == "ar_lopti" else found["weight/min"] == 1
        case "high_entropy":
            assert found["filter/selected_fraction"] == pytest.approx(0.2, abs=0.03)
            assert found["filter/selected_entropy"] > found["objective/entropy"]
    if name in ("dapo", "high_entropy"):
        assert found["rollout/trajectories"] == asked * (1 + found["filter/refill_rounds"]) or (
            found["filter/uniform_groups_dropped"] > 0
        )
        assert found["reward/overlong_fraction"] > 0
        assert found["reward/overlong_mean"] < 0


@pytest.mark.parametrize("name", PRESETS)
def test_two_steps(
    name: str, tmp_path, serve, settings, metrics: Callable[[Path], list[dict[str, Any]]], warm_folder
) -> None:
    server, _ = serve()
    algo = compose("train", [f"algo={name}"]).model_dump()["algo"]
    values = settings(tmp_path / "run", server.url, model={"path": str(warm_folder)}, train={"steps": 2})
    values["algo"] = algo
    if name in ("dapo", "high_entropy"):
        values["rollout"]["max_response_tokens"] = 100  # so that some responses are overlong
    said: list[str] = []
    train(RunConfig.model_validate(values), log=said.append)
    assert any(line.startswith(f"objective {name}: ") for line in said)
    assert any("constant 1" in line for line in said) == (name == "tr_grpo_literal")
    lines = [line for line in metrics(tmp_path / "run") if line["phase"] == "train"]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert all(math.isfinite(value) for value in line.values() if not isinstance(value, str))
        assert line["objective/skipped_updates"] == 0
        assert line["objective/grad_norm"] > 0
        at_work(name, line, 12)
    beta, inside = algo["kl"]["beta"], algo["kl"]["weighting"] == "inside"
    assert (lines[1]["objective/kl"] > 0) == (beta > 0) or name == "tr_grpo_literal"
    # At the reference every estimator is 0, but Eq. 10 is not where w > 1: w - log w - 1.
    if "lopti" not in name:
        assert (lines[0]["objective/kl"] > 1e-6) == (inside and name != "tr_grpo_literal")


def test_several_updates_use_ratios(tmp_path, serve, settings, metrics, warm_folder) -> None:
    """On-policy all ratios are 1; with three updates a rollout, clips and sequence ratios come to life."""
    server, _ = serve()
    for name, clipped in (("grpo", False), ("gspo", True), ("cispo", False)):
        algo = compose("train", [f"algo={name}"]).model_dump()["algo"]
        values = settings(
            tmp_path / name,
            server.url,
            model={"path": str(warm_folder)},
            train={"steps": 1, "updates_per_rollout": 3},
        )
        values["algo"] = algo
        train(RunConfig.model_validate(values), log=lambda _: None)
        (line,) = [line for line in metrics(tmp_path / name) if line["phase"] == "train"]
        assert line["objective/ratio_max"] > 1 + 1e-4
        share = line["objective/clip_fraction_pos"] + line["objective/clip_fraction_neg"]
        assert (share > 0) or not clipped, "a sequence ratio is held at a ten-thousandth"


def test_the_alarm_warns_keeps_checkpoints_and_stops(tmp_path, serve, settings, metrics, warm_folder) -> None:
    """An absurd learning rate: the policy is gone after a step, and the run says so."""
    server, _ = serve()
    values = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(warm_folder)},
        train={"steps": 8, "keep_checkpoints": 1, "optim": {"lr": 0.3}},
        alarm={"baseline_steps": 1, "patience_steps": 1, "invalid_action_rise": 0.3},
    )
    said: list[str] = []
    train(RunConfig.model_validate(values), log=said.append)
    alarms = [line for line in said if line.startswith("alarm: ")]
    assert len(alarms) >= 2
    lines = [line for line in metrics(tmp_path / "run") if line["phase"] == "train"]
    fired = next(line["step"] for line in lines if any(v for k, v in line.items() if k.startswith("alarm/")))
    kept = [checkpoint.step for checkpoint in find_checkpoints(tmp_path / "run")]
    assert fired in kept, "the checkpoint of the alarm outlives keep_checkpoints=1"
    assert kept[-1] == 8

    values["run_dir"] = str(tmp_path / "stopped")
    values["alarm"]["stop"] = True
    with pytest.raises(TrainingError, match=r"stopped after step \d+ by the collapse alarm"):
        train(RunConfig.model_validate(values), log=said.append)
    stopped = find_checkpoints(tmp_path / "stopped")[-1].step
    assert stopped == fired
    values["alarm"]["stop"] = False
    assert train(RunConfig.model_validate(values), log=said.append).step == 8

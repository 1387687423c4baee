"""`train task=kk` and `task=math`: whole runs of a tiny model with no tool server anywhere."""

from __future__ import annotations

import pytest

from agent_rl.config.schema import RunConfig
from agent_rl.train.launch import train

pytestmark = pytest.mark.slow
NOBODY = "http://127.0.0.1:9"  # the discard port: a run that asked for a server would fail there
TASKS = {
    "kk": {
        "kind": "kk",
        "prompt": "brief",
        "data": {"kind": "generated", "people": [2, 3], "train": 30, "dev": 3, "test": 3},
    },
    "math": {"kind": "math", "prompt": "brief", "data": {"kind": "generated", "train": 60, "dev": 6, "test": 6}},
}


@pytest.mark.parametrize("name", TASKS)
def test_a_run_without_tools(name, tmp_path, settings, metrics, trajectories) -> None:
    limits = {"max_turns": 1, "max_turn_tokens": 300, "max_response_tokens": 300, "max_prompt_tokens": 400}
    values = settings(
        tmp_path / "run",
        NOBODY,
        rollout={**limits, "group_size": 3},
        warmup={"traces": 16, "epochs": 1, "lr": 5e-3},
        train={"steps": 2, "prompts_per_step": 2, "max_batch_tokens": 4000},
        eval={"after": True, "questions": 2, "samples": 2},
        tools={"autostart": True},
    )
    values["task"] = TASKS[name]
    said: list[str] = []
    assert train(RunConfig.model_validate(values), log=said.append).step == 2
    assert not (tmp_path / "run" / "tool_server.log").exists()
    steps = [line for line in metrics(tmp_path / "run") if line["phase"] == "train"]
    assert len(steps) == 2
    assert all(line["rollout/failed"] == 0 for line in steps)
    assert all(0 <= line["reward/em"] <= 1 for line in steps)
    if name == "kk":
        assert all(-3 <= line["reward/mean"] <= 3 for line in steps)
        assert {key for line in steps for key in line if key.startswith("reward/em_")} <= {
            "reward/em_2_people",
            "reward/em_3_people",
        }
    for record in trajectories(tmp_path / "run", 1):
        assert record["reward"] is not None
        assert 2 not in record["authors"]  # no token is a tool's

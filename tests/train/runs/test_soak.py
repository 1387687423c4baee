"""A long run in miniature: nothing grows from step to step.

By hand with more steps: SOAK_STEPS=2000 pytest tests/train/runs/test_soak.py -s
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

from agent_rl.config.schema import RunConfig
from agent_rl.train.launch import train

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")]

STEPS = int(os.environ.get("SOAK_STEPS", "150"))
SETTLED = STEPS // 3  # before that, arenas and caches of the libraries fill


def held() -> dict[str, int]:
    """What this process holds now; ``rss`` in bytes."""
    gc.collect()
    return {
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


def test_nothing_grows_over_many_steps(tmp_path, serve, settings, warm_folder) -> None:
    server, _ = serve()
    values = settings(
        tmp_path / "run",
        server.url,
        model={"path": str(warm_folder)},
        algo={"kl": {"beta": 0.01}},
        rollout={"max_turns": 2, "max_turn_tokens": 12, "max_response_tokens": 60, "group_size": 2},
        train={
            "steps": STEPS,
            "prompts_per_step": 2,
            "updates_per_rollout": 2,
            "optim": {"lr": 1e-5},
            "checkpoint_every_steps": 25,
            "save_trajectories_every_steps": 5,
        },
        alarm={"enabled": True},
    )
    seen: list[dict[str, int]] = []

    def log(line: str) -> None:
        if line.startswith("step "):
            seen.append(held())

    train(RunConfig.model_validate(values), log=log)
    assert len(seen) >= STEPS
    half = (SETTLED + STEPS) // 2
    early, late = seen[SETTLED:half], seen[half:]
    for name in ("files", "threads", "tasks"):
        assert max(step[name] for step in late) <= max(step[name] for step in early), name
    growth = min(step["rss"] for step in late) - min(step["rss"] for step in early)
    print(
        f"{STEPS} steps: {seen[SETTLED]} -> {seen[-1]}, least resident memory of the halves differs by {growth} bytes"
    )
    assert growth < 200 * (STEPS - SETTLED) + 2**20, "no list of every step, and no tensor, is kept"

"""A long run in miniature: nothing grows from step to step.

By hand with more steps: SOAK_STEPS=2000 pytest tests/train/runs/test_soak.py -s
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import re
import threading
from pathlib import Path

import pytest

from agent_rl.config.schema import RunConfig
from agent_rl.train.launch import train

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")]

STEPS = int(os.environ.get("SOAK_STEPS", "150"))
LOOK_EVERY = 5  # steps; a look collects garbage, which takes longer than a step


def held() -> dict[str, int]:
    """What this process holds now; ``rss`` in bytes."""
    gc.collect()
    opened = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    sockets = sum(target.startswith("socket:") for target in opened)
    threads = [thread.name for thread in threading.enumerate()]
    pooled = sum(re.fullmatch(r"(asyncio|uvloop)_\d+", name) is not None for name in threads)
    return {
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "files": len(opened) - sockets,
        "sockets": sockets,
        "threads": len(threads) - pooled,
        "pooled": pooled,
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
    steps = itertools.count(1)

    def log(line: str) -> None:
        if re.match(r"step \d+/", line) and next(steps) % LOOK_EVERY == 0:
            seen.append(held())
            print(line[:20], seen[-1])

    train(RunConfig.model_validate(values), log=log)
    assert len(seen) == STEPS // LOOK_EVERY
    settled = seen[len(seen) // 3 :]  # before that, arenas and caches of the libraries fill
    early, late = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    # Idle connections to the tool server come and go: both ends of one for each of four in flight, and the listener.
    assert max(look["sockets"] for look in seen) <= 2 * 4 + 3
    # An event loop's pool of threads grows when two calls happen to coincide, at any step, up to a bound of its own; a
    # loop that a step leaves behind would bring a pool a step. Two are of this test: the run's, and the tool server's.
    pool_size = min(32, (os.cpu_count() or 1) + 4)
    assert max(look["pooled"] for look in seen) - seen[0]["pooled"] <= 2 * pool_size
    for name in ("files", "threads", "tasks"):
        assert max(look[name] for look in late) <= max(look[name] for look in early), name
    growth = min(look["rss"] for look in late) - min(look["rss"] for look in early)
    print(
        f"{STEPS} steps: {settled[0]} -> {settled[-1]}, least memory of the later half - earlier half: {growth} bytes"
    )
    # The C allocator takes 4 MiB at a time: a leak shows once it is larger than that.
    assert growth < 8 * 2**20, "no list of every step's tokens, and no tensor, is kept"

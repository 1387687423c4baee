"""`agent-rl train backend=verl` on two CPU cores: a tiny model, a real tool server, Ray, FSDP2, kill and resume."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
PLATFORM = "tests/backends/verl/cpu_platform"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}

KK = {
    "task": {"kind": "kk", "prompt": "brief", "data": {"kind": "generated", "people": [2], "train": 40, "dev": 4}},
    "rollout": {"max_turns": 1, "max_prompt_tokens": 700, "max_response_tokens": 48, "max_turn_tokens": 48},
    # two optimiser batches of two groups each
    "train": {"prompts_per_step": 4, "updates_per_rollout": 2},
}


def read_until(child: subprocess.Popen[str], wanted: str) -> str:
    """What the child says up to the line with ``wanted``; fails with the end of it where it stops before."""
    said = []
    for line in child.stdout:
        said.append(line)
        if wanted in line:
            return "".join(said)
    pytest.fail(f"no {wanted!r} before the end:\n{''.join(said)[-4000:]}")


def check_records(records: list[dict[str, Any]], line: dict[str, Any], updates: int) -> None:
    """What reached verl's loss is what the ledgers say: its tokens were counted in the workers."""
    for record in records:
        assert record["loss_mask"] == [int(author == 1) for author in record["authors"]]
        assert len(record["ids"]) == len(record["logprobs"]) == len(record["loss_mask"])
        weighted = [weight is not None for weight in record["weights"]]
        if record["advantage"] is not None:
            assert weighted == [bool(flag) for flag in record["loss_mask"]]
    trained = [record for record in records if record["advantage"] is not None]
    tokens = sum(sum(record["loss_mask"]) for record in trained)
    assert line["objective/trained_tokens"] * updates == pytest.approx(tokens)
    if trained and updates == 1:  # recorded under the policy that the updates began with
        everything = [w for record in trained for w in record["weights"] if w is not None]
        assert line["weight/mean"] == pytest.approx(sum(everything) / len(everything), rel=2e-3)
    rewards = [record["reward"] for record in records if record["reward"] is not None]
    assert line["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))


@pytest.mark.parametrize("task", ["search", "kk"])
def test_train_kill_resume(
    task,
    tmp_path,
    serve,
    verl_settings,
    model_folder,
    start_cli,
    to_arguments,
    merge,
    metrics,
    steps_done,
    trajectories,
) -> None:
    """Warm-up (search), validation, steps, checkpoint; killed outright after step 3, it goes on as it would have."""
    server, _ = serve()
    run_dir = tmp_path / "run"
    updates = 2 if task == "kk" else 1
    values = verl_settings(
        run_dir,
        server.url,
        train={"steps": 4},
        eval={"before": True, "after": True, "questions": 4, "samples": 2},
    )
    if task == "search":  # from the random model, so that the warm-up's checkpoint is policy and reference
        warm = {"traces": 60, "epochs": 5, "batch_size": 8, "lr": 5e-3}
        values = merge(values, {"model": {"path": str(model_folder)}, "warmup": warm})
    else:
        values = merge({key: value for key, value in values.items() if key != "task"}, KK)
    args = ["train", *to_arguments(values)]

    child = start_cli(*args)
    read_until(child, "step 3/4")
    child.send_signal(signal.SIGKILL)
    child.wait()
    killed = metrics(run_dir)
    assert steps_done(run_dir) == [1, 2, 3]

    again = start_cli(*args)
    said, _ = again.communicate(timeout=500)
    assert again.returncode == 0, said[-4000:]
    assert "resuming" in said
    assert "after step 2; 1 later lines of metrics.jsonl dropped" in said
    assert steps_done(run_dir) == [1, 2, 3, 4]
    lines = {line["step"]: line for line in metrics(run_dir) if line["phase"] == "train"}
    # Step 3, done again from the checkpoint of step 2, is the one that was killed: same questions, draws and update.
    before = next(line for line in killed if line["phase"] == "train" and line["step"] == 3)
    for name in (
        "reward/mean",
        "rollout/policy_tokens_mean",
        "rollout/entropy",
        "objective/loss",
        "objective/grad_norm",
    ):
        assert lines[3][name] == pytest.approx(before[name], rel=1e-4, abs=1e-6), name
    for step in range(1, 5):
        records = trajectories(run_dir, step)
        assert len(records) == lines[step]["rollout/trajectories"]
        check_records(records, lines[step], updates)
        # The sampler and the trainer are one model in float32.
        assert lines[step]["mismatch/max_abs_logp"] < 1e-4
        assert lines[step]["rollout/failed"] == 0
    assert len({record["item_id"] for record in trajectories(run_dir, 1)}) == (4 if task == "kk" else 3)
    assert all((run_dir / "eval" / f"{label}.json").is_file() for label in ("before", "after", "comparison"))
    assert (run_dir / "verl" / "manifest.json").is_file()
    assert json.loads((run_dir / "checkpoints" / "step_000004" / "manifest.json").read_text())["step"] == 4
    assert len(list((run_dir / "verl_checkpoints").glob("global_step_*"))) == 2  # train.keep_checkpoints
    assert (run_dir / "checkpoints" / "step_000000").exists() == (task == "search")  # the reference is kept

    # Nothing is left to do; the report and an evaluation of the checkpoint know the run.
    done = start_cli(*args)
    assert "nothing left to do" in done.communicate(timeout=200)[0]
    report = start_cli("report", str(run_dir))
    said, _ = report.communicate(timeout=100)
    assert report.returncode == 0, said
    scored = start_cli("eval", f"run={run_dir}", "eval.questions=2", "eval.samples=0")
    said, _ = scored.communicate(timeout=200)
    assert scored.returncode == 0, said


def test_the_tool_server_is_killed_during_a_step(
    tmp_path, serve, verl_settings, start_cli, to_arguments, metrics, trajectories
) -> None:
    """The step goes on without the trajectories that needed it: masked, in no group's statistics, counted."""
    server, tool = serve()
    run_dir = tmp_path / "run"
    values = verl_settings(
        run_dir,
        server.url,
        tools={"call_timeout_s": 5.0},
        rollout={"retries": 0, "max_failed_fraction": 1.0},
        train={"steps": 50, "checkpoint_every_steps": 50},
    )
    child = start_cli("train", *to_arguments(values))
    read_until(child, "step 1/50")
    calls = tool.calls

    def kill() -> None:
        while tool.calls <= calls + 4:  # the first few of step 2 are answered
            time.sleep(0.001)
        tool.gate.clear()
        server.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    read_until(child, "step 2/50")
    killer.join()
    serve(server.port)
    read_until(child, "step 3/50")
    # Ctrl-C: the step under way is finished, and a checkpoint written.
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=300)
    assert child.returncode == 130, said[-4000:]
    stopped = int(re.search(r"stopped after step (\d+); the same command goes on", said)[1])
    assert (run_dir / "checkpoints" / f"step_{stopped:06d}" / "manifest.json").is_file()
    assert not (run_dir / ".stop").exists()
    lines = {line["step"]: line for line in metrics(run_dir) if line["phase"] == "train"}
    assert lines[2]["rollout/failed"] == lines[2]["tool/failures"] > 0
    assert lines[3]["rollout/failed"] == 0
    records = trajectories(run_dir, 2)
    failed = [record for record in records if record["error"] is not None]
    assert len(failed) == lines[2]["rollout/failed"] < len(records)
    for record in failed:
        assert record["error"]["boundary"] == "tool"
        assert record["reward"] is record["advantage"] is None
        assert set(record["weights"]) == {None}
    check_records(records, lines[2], 1)


@pytest.fixture
def cluster(tmp_path_factory) -> Iterator[str]:
    """A Ray that was there before, as `ray start --head` makes one; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    # a short path: the sockets in it may not have more than 107 bytes
    place = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    room = ["--num-cpus=16", "--num-gpus=1", "--object-store-memory=300000000", "--include-dashboard=false"]
    environment = os.environ | TOKEN | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / PLATFORM)])}
    start = [
        *ray,
        "start",
        "--head",
        f"--port={port}",
        f"--temp-dir={place}",
        *room,
        "--disable-usage-stats",
        "--block",
    ]
    head = subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    address = f"127.0.0.1:{port}"
    ends = time.monotonic() + 90
    status = [*ray, "status", f"--address={address}"]
    while subprocess.run(status, env=environment, capture_output=True).returncode:
        assert head.poll() is None
        assert time.monotonic() < ends
        time.sleep(1)
    yield address
    head.terminate()  # it takes its processes with it
    head.wait(60)
    shutil.rmtree(place, ignore_errors=True)


def test_on_a_cluster_that_was_there_before(
    tmp_path, serve, verl_settings, start_cli, to_arguments, cluster, metrics, trajectories
) -> None:
    server, _ = serve()
    run_dir = tmp_path / "run"
    values = verl_settings(run_dir, server.url, train={"steps": 1}, backend={"ray_address": cluster})
    refused = start_cli("train", *to_arguments(values), RAY_AUTH_MODE="disabled")
    assert "asks for a token: set RAY_AUTH_MODE=token" in refused.communicate(timeout=200)[0]
    assert refused.returncode == 2
    child = start_cli("train", *to_arguments(values), **TOKEN)
    said, _ = child.communicate(timeout=500)
    assert child.returncode == 0, said[-4000:]
    (line,) = (line for line in metrics(run_dir) if line["phase"] == "train")
    check_records(trajectories(run_dir, 1), line, 1)
    asked = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={cluster}"]
    assert subprocess.run(asked, env=os.environ | TOKEN, capture_output=True).returncode == 0, (
        "the run left it as it was"
    )


def test_what_cannot_run_says_why(tmp_path, serve, verl_settings, start_cli, to_arguments) -> None:
    """No such cluster, too few GPUs, no such model: one message each, exit 2, before anything trains."""
    server, _ = serve()
    cases = {
        "no-cluster": ({"backend": {"ray_address": "127.0.0.1:1"}}, "no Ray at backend.ray_address=127.0.0.1:1"),
        "too-few-gpus": ({"backend": {"gpus_per_node": 4}}, "needs 4 GPUs, and Ray has 1"),
        "no-model": ({"model": {"path": str(tmp_path / "nothing")}}, "no such folder"),
        "empty-folder": ({"model": {"path": str(tmp_path)}}, "no model to be had at"),
    }
    for name, (changes, wanted) in cases.items():
        child = start_cli("train", *to_arguments(verl_settings(tmp_path / name, server.url, **changes)))
        said, _ = child.communicate(timeout=200)
        assert child.returncode == 2, said[-2000:]
        last = said.strip().splitlines()[-1]
        assert last.startswith("agent-rl: "), said[-2000:]
        assert wanted in last
        assert "Traceback" not in said

"""`agent-rl train backend=verl` on two CPU cores: a tiny model, a real tool server, Ray, FSDP2, kill and resume."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.slow


def test_train_kill_resume(tmp_path, serve, verl_settings, start_cli, to_arguments, metrics, trajectories) -> None:
    server, tool = serve()
    run_dir = tmp_path / "run"
    values = verl_settings(
        run_dir,
        server.url,
        train={"steps": 4},
        eval={"before": True, "after": True, "questions": 4, "samples": 2},
    )
    args = ["train", *to_arguments(values)]
    child = start_cli(*args)
    lines = []
    for line in child.stdout:
        lines.append(line)
        print(line, end="", flush=True)
        if "step 3/4" in line:
            child.send_signal(signal.SIGKILL)
            break
    child.wait()
    assert any("step 3/4" in line for line in lines), "".join(lines)[-3000:]
    before = metrics(run_dir)
    again = start_cli(*args)
    out, _ = again.communicate(timeout=400)
    print(out)
    assert again.returncode == 0

"""metrics.jsonl is always complete; loggers beside it may fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agent_rl.config.schema import LoggingConfig
from agent_rl.train.metrics import MetricsLog

QUIET = LoggingConfig(tensorboard=False)


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def opened(folder: Path, config: LoggingConfig = QUIET, said: list[str] | None = None) -> MetricsLog:
    return MetricsLog(folder, config, {}, (said if said is not None else []).append)


def written(folder: Path, *numbers: int) -> MetricsLog:
    log = opened(folder)
    for number in numbers:
        log.write("train", number, {"reward/mean": number / 2})
    return log


def test_one_object_a_line(tmp_path: Path) -> None:
    log = written(tmp_path, 1, 2)
    assert [json.loads(line) for line in log.path.read_text().splitlines()] == [
        {"phase": "train", "step": 1, "reward/mean": 0.5},
        {"phase": "train", "step": 2, "reward/mean": 1.0},
    ]


@pytest.mark.parametrize(("step", "kept"), [(-5, []), (0, [-1, 0]), (2, [-1, 0, 1, 2]), (9, [-1, 0, 1, 2, 3])])
def test_rewind_drops_what_is_later(tmp_path: Path, step: int, kept: list[int]) -> None:
    log = written(tmp_path, -1, 0, 1, 2, 3)
    assert log.rewind(step) == 5 - len(kept)
    assert steps(log.path) == kept


def test_rewind_without_a_file(tmp_path: Path) -> None:
    assert opened(tmp_path).rewind(3) == 0


@pytest.mark.parametrize("tail", ['{"phase": "train", "st', '{"phase": "train"}', "7", "\x00\x00\x00"])
def test_half_written_last_line_is_dropped(tmp_path: Path, tail: str) -> None:
    log = written(tmp_path, 1, 2)
    with log.path.open("a") as file:
        file.write(tail)
    assert log.rewind(2) == 1
    log.write("train", 3, {})
    assert steps(log.path) == [1, 2, 3]


def test_last_line_that_lacks_its_newline_alone(tmp_path: Path) -> None:
    log = written(tmp_path, 1, 2)
    log.path.write_text(log.path.read_text().rstrip("\n"))
    assert log.rewind(2) == 0
    log.write("train", 3, {})
    assert steps(log.path) == [1, 2, 3]


def test_tensorboard_is_written_beside_it(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = opened(tmp_path, LoggingConfig(tensorboard=True))
    for number in (1, 2, 3):
        log.write("train", number, {"reward/mean": float(number)})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/reward/mean")] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_logger_that_cannot_start_warns_once(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file stands where the folder should be")
    said: list[str] = []
    log = opened(tmp_path, LoggingConfig(tensorboard=True), said)
    for number in (1, 2):
        log.write("train", number, {"x": 1.0})
    log.close()
    assert len(said) == 1
    assert said[0].startswith("TensorBoard is off for this run: ")
    assert steps(log.path) == [1, 2]


WANDB = """
import os
class Run:
    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "step")
    def log(self, values):
        assert "step" in values
        {on_log}
    def finish(self):
        {on_finish}
def init(project, dir, **rest):
    {on_init}
    return Run()
"""
FULL = "raise OSError(28, 'No space left on device')"
DENIED = "raise PermissionError(13, 'Permission denied', os.environ['WANDB_DIR'])"


@pytest.mark.parametrize(
    ("where", "warning"),
    [
        ("on_init", "W&B is off for this run: PermissionError"),
        ("on_log", "W&B is off from step 1 on: OSError"),
        ("on_finish", "W&B could not be closed: OSError"),
        (None, "W&B is off for this run: ModuleNotFoundError"),
    ],
)
def test_wandb_that_fails_or_is_absent_warns_once(tmp_path: Path, monkeypatch, where, warning) -> None:
    """PeterGriffinJin/Search-R1#141: offline W&B with an unwritable folder wrote nothing and said nothing."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", "/proc/nowhere")
    if where is None:
        monkeypatch.setitem(sys.modules, "wandb", None)
    else:
        body = dict.fromkeys(("on_init", "on_log", "on_finish"), "pass") | {where: DENIED if "init" in where else FULL}
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "wandb.py").write_text(WANDB.format(**body))
        monkeypatch.syspath_prepend(str(tmp_path / "lib"))
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
    said: list[str] = []
    log = opened(tmp_path, LoggingConfig(tensorboard=False, wandb=True), said)
    for number in (1, 2, 3):
        log.write("train", number, {"x": 1.0})
    log.close()
    sys.modules.pop("wandb", None)
    assert [line[: len(warning)] for line in said] == [warning]
    assert steps(log.path) == [1, 2, 3]


TRACKIO = """
from pathlib import Path
class Run:
    def log(self, values, step):
        if {breaks!r} == "log":
            raise OSError(28, "No space left on device")
        with Path({seen!r}).open("a") as file:
            file.write(f"{{step}} {{values}}\\n")
    def finish(self):
        with Path({seen!r}).open("a") as file:
            file.write("finished\\n")
def init(project, name, config, resume):
    if {breaks!r} == "init":
        raise ConnectionError("no such space")
    return Run()
"""


@pytest.mark.parametrize(
    ("breaks", "warning", "kept"),
    [
        ("", None, ["1 {'train/x': 1.0}", "2 {'train/x': 1.0}", "finished"]),
        ("init", "trackio is off for this run: ConnectionError: no such space", []),
        ("log", "trackio is off from step 1 on: OSError: [Errno 28] No space left on device", []),
    ],
)
def test_trackio_gets_the_metrics_and_may_fail(tmp_path: Path, monkeypatch, breaks, warning, kept) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "trackio.py").write_text(TRACKIO.format(breaks=breaks, seen=str(seen)))
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    said: list[str] = []
    log = opened(tmp_path, LoggingConfig(tensorboard=False, trackio=True), said)
    for number in (1, 2):
        log.write("train", number, {"x": 1.0})
    log.close()
    sys.modules.pop("trackio", None)
    assert said == ([] if warning is None else [warning])
    assert (seen.read_text().splitlines() if seen.exists() else []) == kept
    assert steps(log.path) == [1, 2]

"""Where metrics go: `metrics.jsonl` always; TensorBoard, W&B and trackio beside it, which may fail without harm."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from agent_rl.config.schema import LoggingConfig


class _Logger(Protocol):
    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    def __init__(self, run_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run_dir / "tensorboard"))

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, run_dir: Path, project: str, config: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(project=project, dir=str(run_dir), name=run_dir.name, config=config, resume="allow")
        # W&B's own step starts at 0 and never goes back: it would drop the warm-up's steps, and those done again.
        self._run.define_metric("*", step_metric="step")

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, run_dir: Path, project: str, config: dict[str, Any]) -> None:
        import trackio

        self._run = trackio.init(project=project, name=run_dir.name, config=config, resume="allow")

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class MetricsLog:
    """Appends one JSON object a line to ``run_dir/metrics.jsonl``, flushed and synced before the step counts.

    An optional logger that fails (cannot start, unwritable folder) warns once and is dropped; training goes on.
    """

    def __init__(
        self, run_dir: Path, config: LoggingConfig, run_config: dict[str, Any], warn: Callable[[str], None]
    ) -> None:
        self.path = run_dir / "metrics.jsonl"
        self._warn = warn
        self._loggers: dict[str, _Logger] = {}
        if config.tensorboard:
            self._start("TensorBoard", lambda: _TensorBoard(run_dir))
        if config.wandb:
            self._start("W&B", lambda: _WandB(run_dir, config.wandb_project, run_config))
        if config.trackio:
            self._start("trackio", lambda: _Trackio(run_dir, config.trackio_project, run_config))

    def _start(self, name: str, make: Callable[[], _Logger]) -> None:
        try:
            self._loggers[name] = make()
        except Exception as error:  # any failure of an optional logger: said once, never fatal
            self._warn(f"{name} is off for this run: {type(error).__name__}: {error}")

    def rewind(self, step: int) -> int:
        """Drop lines after ``step`` (from a run that was killed beyond its checkpoint); returns how many."""
        if not self.path.exists():
            return 0
        kept, dropped = [], 0
        text = self.path.read_text(encoding="utf-8")
        for line in text.splitlines():
            try:
                keep = json.loads(line)["step"] <= step
            except (ValueError, KeyError, TypeError):  # the last line of a killed run may be half written
                keep = False
            if keep:
                kept.append(line + "\n")
            else:
                dropped += 1
        if "".join(kept) != text:  # also where only the newline of the last line is missing
            fresh = self.path.with_suffix(".jsonl.tmp")
            fresh.write_text("".join(kept), encoding="utf-8")
            os.replace(fresh, self.path)
        return dropped

    def lines(self, phase: str) -> list[dict[str, float]]:
        """The lines of ``phase`` written so far, in order."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["phase"] == phase]

    def write(self, phase: str, step: int, values: dict[str, float]) -> None:
        """``step``: warm-up steps count up to 0 (..., -1, 0), RL steps from 1."""
        line = json.dumps({"phase": phase, "step": step, **values}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        for name, logger in list(self._loggers.items()):
            try:
                logger.log({f"{phase}/{key}": value for key, value in values.items()}, step)
            except Exception as error:
                self._warn(f"{name} is off from step {step} on: {type(error).__name__}: {error}")
                del self._loggers[name]

    def close(self) -> None:
        for name, logger in self._loggers.items():
            try:
                logger.close()
            except Exception as error:  # e.g. a full disk under its last records: the run itself is whole
                self._warn(f"{name} could not be closed: {type(error).__name__}: {error}")
        self._loggers.clear()

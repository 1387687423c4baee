"""Asking a run on a cluster to stop: a file in its directory, which the trainer looks for after each step."""

from __future__ import annotations

from pathlib import Path

_NAME = ".stop"


class Stopped(Exception):
    """Raised by the trainer once a checkpoint of the last step is written."""


def ask_to_stop(run_dir: Path) -> None:
    (run_dir / _NAME).touch()


def stop_asked(run_dir: Path) -> bool:
    return (run_dir / _NAME).exists()


def forget(run_dir: Path) -> None:
    (run_dir / _NAME).unlink(missing_ok=True)

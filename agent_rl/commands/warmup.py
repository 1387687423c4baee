"""`agent-rl warmup`: the supervised steps on oracle trajectories alone."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command, composed


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "warmup",
        run=run,
        composes="warmup",
        summary="teach the grammar by supervised steps on oracle trajectories alone",
        examples=["agent-rl warmup experiment=demo warmup.traces=500 run_dir=runs/warm"],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.train.launch import warmup

    if warmup(config).interrupted:
        raise KeyboardInterrupt

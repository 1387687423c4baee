"""`agent-rl rollout`: sample trajectories and show them, without training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command, check_out, composed


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "rollout",
        run=run,
        composes="rollout",
        summary="sample trajectories and show every token's author, without training",
        examples=[
            "agent-rl rollout questions=2 rollout.temperature=0.7",
            "agent-rl rollout run=runs/demo questions=8 out=rollouts/demo",
        ],
    )


def run(args: argparse.Namespace) -> None:
    command = composed(args)

    from agent_rl.config.commands import run_config
    from agent_rl.rollout.run import rollout_command

    out = Path(command.out) if command.out else Path(command.run_dir) / "rollouts"
    check_out(out)
    rollout_command(run_config(command), command.questions, out, command.chosen_checkpoint())

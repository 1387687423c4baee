"""`agent-rl eval`: answer held-out questions with any checkpoint and score them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command, check_out, composed


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "eval",
        run=run,
        composes="eval",
        summary="evaluate a checkpoint or a model on held-out questions",
        examples=[
            "agent-rl eval run=runs/demo eval.split=test eval.questions=400",
            "agent-rl eval run=runs/demo checkpoint=10",
            "agent-rl eval model=Qwen/Qwen2.5-0.5B eval.samples=0 out=results/untrained",
        ],
    )


def run(args: argparse.Namespace) -> None:
    command = composed(args)

    from agent_rl.config.commands import run_config
    from agent_rl.evaluation.command import evaluate_command

    out = Path(command.out) if command.out else Path(command.run_dir) / "eval"
    check_out(out)
    evaluate_command(run_config(command), command.chosen_checkpoint(), out)

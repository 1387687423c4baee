"""`agent-rl train`: reinforcement learning, after a supervised warm-up where one is asked for."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command, composed


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "train",
        run=run,
        composes="train",
        summary="train a model by reinforcement learning; given again, go on with a run that was stopped",
        examples=[
            "agent-rl train experiment=demo",
            "agent-rl train task=search algo=tr_grpo run_dir=runs/first",
            "agent-rl train experiment=qa_multihop task.data.train=questions.jsonl tools.url=http://127.0.0.1:8901",
            "agent-rl train model=Qwen/Qwen2.5-0.5B algo=grpo train.optim.lr=2e-6 tools.autostart=true",
        ],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.train.launch import train

    if train(config).interrupted:
        raise KeyboardInterrupt

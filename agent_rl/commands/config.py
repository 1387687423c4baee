"""`agent-rl config`: what a command would run with, or every key that it knows."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "config",
        run=run,
        composes="train",
        summary="show the resolved configuration of a command (default: train), or all its keys",
        examples=[
            "agent-rl config",
            "agent-rl config algo=tr_grpo_literal train.steps=5",
            "agent-rl config build-index encoder=e5_base_v2",
            "agent-rl config --keys serve-tools",
        ],
    )
    parser.add_argument("--keys", action="store_true", help="list every key with its default and its meaning")


def run(args: argparse.Namespace) -> None:
    from agent_rl.config.commands import COMMANDS
    from agent_rl.config.compose import compose, resolved_yaml
    from agent_rl.config.sections import describe_keys
    from agent_rl.errors import UsageError

    command, overrides = args.composes, args.overrides
    if overrides and "=" not in overrides[0]:
        command, overrides = overrides[0], overrides[1:]
    if command not in COMMANDS:
        raise UsageError(
            f"config {command}: not a command with a configuration; they are {', '.join(COMMANDS)}"
        )
    if args.keys:
        if overrides:
            raise UsageError("config --keys lists the keys of the schema and takes no overrides")
        print(
            "\n".join(
                f"{key} = {default}{meaning and f'  # {meaning}'}"
                for key, default, meaning in describe_keys(COMMANDS[command][1])
            )
        )
    else:
        print(resolved_yaml(compose(command, overrides, args.config_dir)), end="")

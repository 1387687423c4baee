"""`agent-rl config show|keys`: what a command would run with, and every key that it knows."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command, add_overrides


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "config",
        run=run,
        composes=None,
        summary="show the resolved configuration of a command (default: train), or all its keys",
        examples=[
            "agent-rl config show",
            "agent-rl config show algo=tr_grpo_literal train.steps=5",
            "agent-rl config show build-index encoder=e5_base_v2",
            "agent-rl config keys serve-tools",
        ],
    )
    parser.add_argument("action", choices=["show", "keys"], help="show: resolved values; keys: defaults and meanings")
    add_overrides(parser)


def run(args: argparse.Namespace) -> None:
    from agent_rl.config.commands import COMMANDS
    from agent_rl.config.compose import compose, resolved_yaml
    from agent_rl.config.sections import describe_keys
    from agent_rl.errors import UsageError

    command, overrides = "train", args.overrides
    if overrides and "=" not in overrides[0]:
        command, overrides = overrides[0], overrides[1:]
    if command not in COMMANDS:
        raise UsageError(
            f"config {args.action} {command}: not a command with a configuration; they are {', '.join(COMMANDS)}"
        )
    if args.action == "show":
        print(resolved_yaml(compose(command, overrides, args.config_dir)), end="")
        return
    if overrides:
        raise UsageError("config keys lists the keys of the schema and takes no overrides")
    print(f"# the schema's defaults; a preset may set another: agent-rl config show {command}")
    for key, default, meaning in describe_keys(COMMANDS[command][1]):
        print(f"{key} = {default}{meaning and f'  # {meaning}'}")

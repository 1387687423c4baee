"""What the parsers of the commands have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_command(
    subparsers: Any,
    name: str,
    *,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    examples: list[str],
    composes: str | None,
) -> argparse.ArgumentParser:
    """A subcommand with examples in its help.

    ``composes``: the key of ``agent_rl.config.commands.COMMANDS`` whose settings it takes, if any.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser, composes=composes)
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error (or AGENT_RL_DEBUG=1)"
    )
    if composes is not None:
        add_overrides(parser)
    return parser


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """The settings that a composed command takes."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, in Hydra's syntax")
    parser.add_argument(
        "--config-dir",
        type=Path,
        metavar="DIR",
        help="a folder of your own presets: DIR/<group>/<name>.yaml",
    )


def composed(args: argparse.Namespace) -> Any:
    """The checked configuration of a parsed command, from its overrides."""
    from agent_rl.config.compose import compose

    return compose(args.composes, args.overrides, args.config_dir)

"""What the parsers of the commands have in common."""

from __future__ import annotations

import argparse
import os
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
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error (or AGENT_RL_DEBUG=1)")
    if composes is not None:
        add_overrides(parser)
    return parser


def add_overrides(parser: argparse.ArgumentParser, **words: Any) -> None:
    """The settings that a composed command takes; ``words`` changes how their positional argument is read."""
    about = {"nargs": "*", "metavar": "key=value", "help": "settings, in Hydra's syntax"}
    parser.add_argument("overrides", **(about | words))
    parser.add_argument(
        "--config-dir",
        type=Path,
        metavar="DIR",
        help="a folder of your own presets: DIR/<group>/<name>.yaml",
    )


def check_out(out: Path) -> None:
    """Raise UsageError unless results can be written to the folder ``out``: asked before the work, not after it."""
    from agent_rl.errors import UsageError

    there = out
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"out={out}: {there} is a file, not a folder; give another folder: out=...")
    if not os.access(there, os.W_OK):
        raise UsageError(f"out={out}: {there} cannot be written to; give another folder: out=...")


def composed(args: argparse.Namespace) -> Any:
    """The checked configuration of a parsed command, from its overrides."""
    from agent_rl.config.compose import compose

    return compose(args.composes, args.overrides, args.config_dir)

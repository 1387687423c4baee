"""`agent-rl watch`: a run in progress, in the terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "watch",
        run=run,
        composes=None,
        summary="show a run in progress in the terminal: curves, numbers, the last trajectories",
        examples=["agent-rl watch runs/demo", "agent-rl watch runs/demo --once"],
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run directory")
    parser.add_argument("--every", type=_seconds, default=5.0, metavar="SECONDS", help="between looks (default: 5)")
    parser.add_argument("--once", action="store_true", help="print it once, also into a file or a pipe")


def run(args: argparse.Namespace) -> None:
    from agent_rl.errors import UsageError
    from agent_rl.report.run_data import read_run
    from agent_rl.report.watch import make_console, once, watch

    console = make_console()
    if args.once:
        console.print(once(read_run(args.run_dir), console))
        return
    if not console.is_terminal:
        raise UsageError("watch fills a terminal, and this is none; --once prints the same once")
    watch(args.run_dir, args.every, console)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.1 on")
    return value

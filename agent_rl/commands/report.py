"""`agent-rl report`: one HTML file about one or several runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "report",
        run=run,
        composes=None,
        summary="write one HTML file with the curves, the evaluation and the trajectories of runs",
        examples=["agent-rl report runs/demo", "agent-rl report runs/a runs/b --out compare.html"],
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run directories")
    parser.add_argument("--out", type=Path, help="the HTML file (default: report.html in the first run directory)")


def run(args: argparse.Namespace) -> None:
    from agent_rl.errors import UsageError

    for folder in args.runs:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such run directory")

    from agent_rl.report import write_report

    print(f"report: {write_report(args.runs, args.out)}")

"""`agent-rl report`: one HTML file about one or several runs, or the same page live in a browser."""

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
        examples=[
            "agent-rl report runs/demo",
            "agent-rl report runs/a runs/b --out compare.html",
            "agent-rl report runs/demo --steps 100:120 --out steps.html   # every trajectory of these steps",
            "agent-rl report runs/demo --serve                            # live, on this machine only",
        ],
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run directories")
    parser.add_argument("--out", type=Path, help="the HTML file (default: report.html in the first run directory)")
    parser.add_argument("--steps", type=_steps, metavar="FIRST:LAST", help="take trajectories of these steps only")
    parser.add_argument("--serve", action="store_true", help="show the page on loopback, anew as the run goes on")
    parser.add_argument("--port", type=int, default=8901, help="port of --serve (default: %(default)s; 0: a free one)")


def run(args: argparse.Namespace) -> None:
    from agent_rl.errors import UsageError

    for folder in args.runs:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such run directory")
    if args.serve:
        if args.out is not None:
            raise UsageError("--out and --serve exclude each other: a served page is not written to a file")
        from agent_rl.report.serve import serve_report

        serve_report(args.runs, args.steps, args.port, print)
        return

    from agent_rl.report import write_report

    print(f"report: {write_report(args.runs, args.out, args.steps)}")


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        found = int(first), int(last or first)
    except ValueError:
        found = 1, 0
    if found[0] > found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of steps; write FIRST:LAST, such as 100:120")
    return found

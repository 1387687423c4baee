"""`agent-rl bench WHAT`: how fast a part is on this machine, beside what people use instead."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command, composed


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("bench", help="measure a part on this machine")
    parser.set_defaults(parser=parser)
    kinds = parser.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    add_command(
        kinds,
        "sandbox",
        run=sandbox,
        composes="bench-sandbox",
        summary="calls of the python tool per second, with their latencies, beside bare subprocesses",
        examples=["agent-rl bench sandbox", "agent-rl bench sandbox calls=50 concurrency=[1,8] python.workers=4"],
    )


def sandbox(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.sandbox import bench_sandbox

    bench_sandbox(config)

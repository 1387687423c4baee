"""One file a command: ``add_parser(subparsers)`` and ``run(args)``. Heavy imports stand inside ``run``."""

from __future__ import annotations

import argparse

from agent_rl.commands import (
    bench,
    build_index,
    config,
    data,
    doctor,
    evaluate,
    fetch,
    report,
    rollout,
    serve_tools,
    train,
    warmup,
    watch,
)

# In the order in which a newcomer meets them.
ALL = (fetch, build_index, serve_tools, train, warmup, evaluate, rollout, watch, report, config, data, bench, doctor)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. What it parses has ``run`` (to be called) and ``parser`` (whose help fits)."""
    parser = argparse.ArgumentParser(
        prog="agent-rl",
        description="Train language models to search by reinforcement learning.",
        epilog="Settings are written key=value, in Hydra's syntax; `agent-rl config show` shows all of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in ALL:
        command.add_parser(subparsers)
    return parser

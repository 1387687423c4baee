"""`agent-rl serve-tools`: the tool server, in a process of its own."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command, composed


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "serve-tools",
        run=run,
        composes="serve-tools",
        summary="serve the search tool over HTTP; stop it with Ctrl-C",
        examples=[
            "agent-rl serve-tools index=indexes/miniwiki port=8900",
            "agent-rl serve-tools index=indexes/mine host=0.0.0.0 token_file=token.txt search.max_batch=128",
        ],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from tools.server import serve

    serve(**config.model_dump(exclude={"search"}), **config.search.model_dump())

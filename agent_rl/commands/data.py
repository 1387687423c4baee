"""`agent-rl data`: write the fictional encyclopedia to a folder, or check every item of a task."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.commands import coverage
from agent_rl.commands.parsing import add_command, check_out, composed

if TYPE_CHECKING:
    from tasks.miniwiki.world import World

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
    add_command(
        kinds,
        "coverage",
        run=coverage.run,
        composes="data-coverage",
        summary="tell what share of the questions an index can answer, and the recall of the question as a query",
        examples=[
            "agent-rl data coverage index=indexes/miniwiki eval.questions=200",
            "agent-rl data coverage index=indexes/wiki sets=[data/nq,data/hotpotqa] max_per_set=500 out=coverage.jsonl",
        ],
    )


def miniwiki(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.errors import UsageError
    from tasks.miniwiki import generate

    out = Path(config.out)
    if (out / "manifest.json").exists():
        raise UsageError(f"{out} holds a data set already; delete it or give another folder: out=...")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} holds other files; give an empty folder or a new one: out=...")
    check_out(out)
    world = generate(config.seed, config.passages)
    # Written beside and renamed at the end: what stands at `out` is whole.
    partial = out.absolute().with_name(f".{out.absolute().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        counts = _write(world, config, partial)
        os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    print(f"{out}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


def _write(world: World, config: Any, out: Path) -> dict[str, int]:
    """The files of the data set; how many rows each has."""
    from tasks.miniwiki import write_corpus

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
                    **item.meta,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    about = config.model_dump(mode="json") | {"rows": counts}
    (out / "manifest.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return counts


def check(args: argparse.Namespace) -> None:
    config = composed(args)

    from tasks.base import TaskDataError
    from tasks.search import SearchTask
    from tasks.search.data import EmptySplit

    task = SearchTask(**config.task.model_dump(exclude={"kind"}))
    faults = []
    for split in SPLITS:
        try:
            items = task.items(split)
        except EmptySplit as error:  # few questions: the hash may hold none of them out
            print(f"{split}: 0 questions ({error})")
            continue
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

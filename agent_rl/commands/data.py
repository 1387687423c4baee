"""`agent-rl data`: prepare public data sets, check every item of a task, write the fictional encyclopedia."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.commands import coverage, data_check, data_prepare
from agent_rl.commands.parsing import add_command, composed
from agent_rl.commands.whole_folder import whole_folder

if TYPE_CHECKING:
    from tasks.miniwiki.world import World

SPLITS = ("train", "dev", "test")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "data", help="prepare public data sets, check a task's questions, write the miniwiki data set"
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
    data_check.add_parser(kinds)
    data_prepare.add_parser(kinds)
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

    from tasks.miniwiki import generate

    out = Path(config.out)
    with whole_folder(out) as folder:
        counts = _write(generate(config.seed, config.passages), config, folder)
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

"""`agent-rl data check`: prove for every item of a task that its own gold answer scores the maximum."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agent_rl.commands.parsing import add_command, composed

if TYPE_CHECKING:
    from tasks.base import Task, TaskItem

SPLITS = ("train", "dev", "test")
# Scorers may wait for processes of their own: enough threads to keep those busy.
THREADS = 8
SHOWN_FAULTS = 20


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "check",
        run=run,
        composes="data-check",
        summary="prove for every question that its own gold answer scores the maximum",
        examples=[
            "agent-rl data check task=search",
            "agent-rl data check task.data.kind=jsonl task.data.train=questions.jsonl",
            "agent-rl data check task=kk",
            "agent-rl data check task=math task.data.kind=files task.data.test=[data/math500/test.jsonl]",
        ],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from agent_rl.rollout.assemble import make_task
    from tasks.base import EmptySplit, TaskDataError

    task = make_task(config)
    faults: list[str] = []
    empty: list[str] = []
    for split in SPLITS:
        try:
            items = task.items(split)
        except EmptySplit as error:  # no file for it, or few questions: the hash may hold none of them out
            empty.append(str(error))
            print(f"{split}: 0 questions ({error})")
            continue
        faults += _faults(task, items)
        print(f"{split}: {len(items)} questions")
    if len(empty) == len(SPLITS):
        raise TaskDataError("no split has a question")
    if faults:
        shown = "\n  ".join(faults[:SHOWN_FAULTS])
        raise TaskDataError(f"{len(faults)} questions cannot reach the maximum score:\n  {shown}")
    print("every gold answer scores the maximum")


def _faults(task: Task, items: Any) -> list[str]:
    from tasks.base import TaskDataError

    def fault(item: TaskItem) -> str | None:
        try:
            task.validate(item)
        except TaskDataError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(THREADS) as threads:
        return [found for found in threads.map(fault, items) if found is not None]

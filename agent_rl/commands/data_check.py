"""`agent-rl data check`: prove for every item of a task that its own gold answer scores the maximum."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
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
            if not items:
                raise EmptySplit(f"task {task.name!r} gives none")
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
        raise TaskDataError(f"{len(faults)} faults in the questions:\n  {shown}")
    print("every gold answer scores the maximum")


def _faults(task: Task, items: Sequence[TaskItem]) -> list[str]:
    from tasks.base import TaskDataError

    def fault(item: TaskItem) -> str | None:
        try:
            task.messages(item)
            task.validate(item)
        except TaskDataError as error:
            return str(error)
        except Exception as error:  # a user's own task may raise anything: name the question, go on with the others
            return f"item {item.id!r}: the task raised {type(error).__name__}: {error}"
        return None

    twice = [f"item {name!r}: {count} questions have this id" for name, count in _ids(items).items() if count > 1]
    with ThreadPoolExecutor(THREADS) as threads:
        return twice + [found for found in threads.map(fault, items) if found is not None]


def _ids(items: Sequence[TaskItem]) -> Counter[str]:
    return Counter(item.id for item in items)

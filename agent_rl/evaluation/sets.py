"""Several sets of questions in one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent_rl.config.schema import RunConfig
from agent_rl.errors import UsageError
from agent_rl.evaluation.run import choose
from agent_rl.rollout.assemble import make_task
from tasks.base import TaskItem

# The kind of task.data that reads files, by task.kind.
FILE_KINDS = {"search": "jsonl", "kk": "files", "math": "files"}


def items_of_sets(config: RunConfig, sets: Sequence[str], max_per_set: int | None) -> list[TaskItem]:
    """The questions of each set, a seeded subset of at most ``max_per_set``, with the set's name in their ids.

    A set is a file, or a folder that `agent-rl data prepare` wrote (its test split). Raises UsageError for a set that
    is not there, two of the same name, or a task that reads no files.
    """
    kind = FILE_KINDS.get(config.task.kind)
    if kind is None:
        raise UsageError(
            f"sets={list(sets)}: task.kind={config.task.kind} reads no files; the task's own split is used"
        )
    found: list[TaskItem] = []
    names: dict[str, str] = {}
    for address in sets:
        name, file = _locate(address)
        if name in names:
            raise UsageError(f"sets: {names[name]} and {address} are both called {name!r}; rename one")
        names[name] = address
        task = make_task(RunConfig.model_validate(_with_file(config, kind, file)))
        items = task.items("test")
        chosen = choose(items, max_per_set or len(items), config.eval.seed, name)
        found += [replace(item, id=f"{name}/{item.id}", meta={**item.meta, "set": name}) for item in chosen]
    return found


def _with_file(config: RunConfig, kind: str, file: Path) -> dict[str, object]:
    values = config.model_dump()
    values["task"]["data"] = {"kind": kind, "test": str(file)}
    return values


def _locate(address: str) -> tuple[str, Path]:
    path = Path(address)
    if not path.is_dir():
        if not path.is_file():
            raise UsageError(f"sets: {address} does not exist; give a file of questions or a folder of data prepare")
        return path.name.split(".")[0], path
    for name in ("test.jsonl", "dev.jsonl"):
        if (path / name).is_file():
            return path.resolve().name, path / name
    raise UsageError(f"sets: {address} has neither test.jsonl nor dev.jsonl")

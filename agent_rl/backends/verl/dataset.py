"""The questions as verl reads them: a parquet file in the order in which the steps ask them, and its manifest."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

from agent_rl.config.schema import RunConfig
from agent_rl.train.order import ItemOrder
from tasks.base import Task, TaskItem

AGENT = "agent_rl"
FORMAT = 1


def write_item(item: TaskItem) -> str:
    """An item as text, whatever its task keeps in ``meta``, for `read_item` in another process of the run."""
    return base64.b64encode(pickle.dumps(item)).decode("ascii")


def read_item(text: str) -> TaskItem:
    item = pickle.loads(base64.b64decode(text))
    assert isinstance(item, TaskItem)
    return item


def rows(config: RunConfig, task: Task, order: ItemOrder) -> list[dict[str, Any]]:
    """One row a question of each step, in verl's columns.

    Row ``(step - 1) * prompts_per_step + place`` is the question at ``place`` of ``step``: what the embedded backend
    asks there with the same seed, so that both train on the same questions and a resumed run goes on in order.
    """
    width = config.train.prompts_per_step
    items = order.take(0, config.train.steps * width)
    return [
        {
            "prompt": [dict(message) for message in task.messages(item)],
            "data_source": task.name,
            "agent_name": AGENT,
            "reward_model": {"style": "rule", "ground_truth": " | ".join(item.gold)},
            "extra_info": {"index": index, "place": index % width, "item": write_item(item)},
        }
        for index, item in enumerate(items)
    ]


def export_dataset(config: RunConfig, task: Task, order: ItemOrder, folder: Path) -> Path:
    """Write ``train.parquet`` and, last, ``manifest.json`` into ``folder``; the path of the first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = rows(config, task, order)
    folder.mkdir(parents=True, exist_ok=True)
    path, manifest = folder / "train.parquet", folder / "manifest.json"
    manifest.unlink(missing_ok=True)
    partial = folder / ".train.parquet.partial"
    pq.write_table(pa.Table.from_pylist(made), partial)
    os.replace(partial, path)
    facts = {
        "format": FORMAT,
        "task": task.name,
        "rows": len(made),
        "questions": len(order.items),
        "steps": config.train.steps,
        "prompts_per_step": config.train.prompts_per_step,
        "seed": config.seed,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    partial_manifest = folder / ".manifest.json.partial"
    partial_manifest.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    os.replace(partial_manifest, manifest)
    return path

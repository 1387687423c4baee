"""Which questions a step asks: a function of the seed and the step alone, so that a resumed run goes on in order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from agent_rl.errors import TrainingError
from agent_rl.rollout.codec import TokenCodec
from agent_rl.rollout.engine import derive_seed
from tasks.base import Task, TaskItem


def usable_items(task: Task, codec: TokenCodec, max_prompt_tokens: int, log: Callable[[str], None]) -> list[TaskItem]:
    """Training items whose prompt fits (verl-project/verl#3936: dropped at load with numbers, never cut).

    Raises TrainingError where none does.
    """
    items = task.items("train")
    usable, first = [], ""
    for item in items:
        length = len(codec.render(task.messages(item)))
        if length <= max_prompt_tokens:
            usable.append(item)
        elif not first:
            first = f"first, {item.id}: {length} > {max_prompt_tokens}"
    dropped = len(items) - len(usable)
    if dropped:
        log(f"{dropped} of {len(items)} questions are left out: prompt too long in tokens ({first})")
    if not usable:
        raise TrainingError(
            f"no training question is usable ({len(items)} read, {dropped} too long); "
            f"see task.data and rollout.max_prompt_tokens={max_prompt_tokens}"
        )
    return usable


class ItemOrder:
    """An endless order of items: every item once an epoch, each epoch shuffled by its own seed."""

    def __init__(self, items: Sequence[TaskItem], seed: int) -> None:
        self.items = list(items)
        self._seed = seed

    def take(self, start: int, count: int, *, label: str = "train") -> list[TaskItem]:
        """Items ``start`` to ``start + count`` of the order ``label``."""
        found: list[TaskItem] = []
        while len(found) < count:
            epoch, place = divmod(start + len(found), len(self.items))
            order = self._epoch(label, epoch)
            found += [self.items[index] for index in order[place : place + count - len(found)]]
        return found

    def _epoch(self, label: str, epoch: int) -> list[int]:
        order = list(range(len(self.items)))
        random.Random(derive_seed(self._seed, "order", label, epoch)).shuffle(order)
        return order

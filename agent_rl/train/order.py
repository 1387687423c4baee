"""Which questions a step asks: a function of the seed and the step alone, so that a resumed run goes on in order."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agent_rl.rollout.engine import derive_seed
from tasks.base import TaskItem


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

"""Seeded choices that are the same on every Python version.

``random.Random`` promises the same ``random()`` stream for a seed for ever; its other methods may change
between releases. So every choice here is made from ``random()`` alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices. ``key`` names the stream: two different keys give unrelated streams."""

    def __init__(self, *key: object) -> None:
        # A string seed goes through SHA-512 inside `random`, so PYTHONHASHSEED plays no part.
        self._random = random.Random("/".join(str(part) for part in key)).random

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return int(self._random() * n)

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high], both ends included."""
        return low + self.below(high - low + 1)

    def chance(self, p: float) -> bool:
        return self._random() < p

    def one(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """A new list in random order (Fisher-Yates)."""
        out = list(options)
        for i in range(len(out) - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out

    def sample(self, options: Sequence[T], k: int) -> list[T]:
        """``k`` different members of ``options``, in random order."""
        return self.shuffled(options)[:k]

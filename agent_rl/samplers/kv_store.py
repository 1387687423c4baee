"""Caches that wait: those of trajectories between two turns, and those of prompts for the others of their group.

They share one budget of bytes. What was used longest ago goes first; a trajectory whose cache went is prefilled again
when it comes back, which is counted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

_SHARED_PROMPTS = 64  # prompts are kept no longer than so many others came after them, however large the budget


@dataclass(frozen=True, slots=True)
class KeptCache:
    """``kv`` [layers, 2, kv_heads, L, head_dim] of the L ``ids``; a prompt's ``logits`` [V] after the last of them."""

    ids: list[int]
    kv: torch.Tensor
    logits: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + (0 if self.logits is None else self.logits.nbytes)


class KVStore:
    """Waiting caches within ``budget_bytes``; 0 keeps nothing."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.nbytes = 0
        self._kept: OrderedDict[str | tuple[int, ...], KeptCache] = OrderedDict()  # a session, or a prompt's ids
        self._prompts = 0
        self._evicted: dict[str, list[int]] = {}  # session -> the ids that its cache held

    def __len__(self) -> int:
        return len(self._kept)

    def keep_turn(self, session: str, ids: list[int], kv: torch.Tensor) -> int:
        """Returns how many trajectories' caches had to go for it (its own may be one)."""
        return self._keep(session, KeptCache(ids, kv))

    def find_turn(self, session: str, ids: list[int]) -> KeptCache | None:
        """The session's cache where it holds a beginning of ``ids``."""
        kept = self._kept.get(session)
        return kept if kept is not None and _is_prefix(kept.ids, ids) else None

    def drop_turn(self, session: str) -> None:
        self._drop(session)

    def count_lost(self, session: str, ids: list[int]) -> int:
        """Tokens of ``ids`` that were evicted with the session's cache and are to be prefilled again; told once."""
        lost = self._evicted.pop(session, None)
        return len(lost) if lost is not None and _is_prefix(lost, ids) else 0

    def keep_prompt(self, prompt: KeptCache) -> int:
        """Returns how many trajectories' caches had to go for it."""
        evicted = self._keep(tuple(prompt.ids), prompt)
        if self._prompts > _SHARED_PROMPTS:
            self._drop(next(key for key in self._kept if isinstance(key, tuple)))
        return evicted

    def find_prompt(self, ids: list[int]) -> KeptCache | None:
        key = tuple(ids)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def end_session(self, session: str) -> None:
        self._drop(session)
        self._evicted.pop(session, None)

    def clear(self) -> None:
        self._kept.clear()
        self._evicted.clear()
        self.nbytes = self._prompts = 0

    def _keep(self, key: str | tuple[int, ...], cache: KeptCache) -> int:
        self._drop(key)
        self._kept[key] = cache
        self.nbytes += cache.nbytes
        self._prompts += isinstance(key, tuple)
        evicted = 0
        while self.nbytes > self.budget_bytes:
            oldest = next(iter(self._kept))
            gone = self._drop(oldest)
            assert gone is not None
            if isinstance(oldest, str):
                self._evicted[oldest] = gone.ids
                evicted += 1
        return evicted

    def _drop(self, key: str | tuple[int, ...]) -> KeptCache | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.nbytes -= kept.nbytes
            self._prompts -= isinstance(key, tuple)
        return kept


def _is_prefix(beginning: list[int], ids: list[int]) -> bool:
    """Whether ``ids`` begins so and goes on: a cache of all of it has no logits to draw from."""
    return len(beginning) < len(ids) and ids[: len(beginning)] == beginning

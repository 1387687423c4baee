"""AdamW whose rate follows our schedule under verl.

verl's schedulers count steps and know two shapes; ours counts updates. So the driver computes each update's rate
(`agent_rl.train.policy.learning_rate`), the loss finds it in its batch, and the optimiser of the process reads it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_rate: float | None = None


def set_rate(rate: float) -> None:
    """The rate of the next step of this process; 0: no step, so that momentum does not move weights on no evidence."""
    global _rate
    _rate = rate


class AdamW(torch.optim.AdamW):
    """Made by verl from ``actor.optim.optimizer_impl`` and ``.optimizer``."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update at the rate last set. Raises RuntimeError where none was: the loss did not run before."""
        if _rate is None:
            raise RuntimeError("no learning rate was set for this update: the loss of agent_rl did not run before it")
        if _rate == 0:
            return None
        for group in self.param_groups:
            group["lr"] = _rate
        return super().step(closure)

"""The clipped policy term of one token, and its derivative."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_term(
    ratio: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    clip_on: str,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> Tensor:
    """PPO's pessimistic term, to be minimised; shapes [N].

    ``clip_on=ratio``: -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).
    ``clip_on=weighted_ratio`` (paper Eq. 9 to the letter): -min(w r A, clip(w r, ...) A).
    ``dual_clip`` c (arXiv 1912.09729): for A < 0 the term is at most -c A (times w where w stands outside).
    """
    inner = weight * ratio if clip_on == "weighted_ratio" else ratio
    term = torch.maximum(-inner * advantage, -inner.clamp(1 - clip_low, 1 + clip_high) * advantage)
    if dual_clip is not None:
        term = torch.where(advantage < 0, torch.minimum(term, -dual_clip * advantage), term)
    return term if clip_on == "weighted_ratio" else weight * term

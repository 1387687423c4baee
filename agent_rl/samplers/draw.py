"""Drawing tokens from logits, each row with its own temperature and its own random number."""

from __future__ import annotations

import torch


def draw(logits: torch.Tensor, temperatures: list[float], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """One token a row from logits [B, V] by inverting the cumulative distribution at ``uniforms`` [B] in [0, 1).

    Returns ids [B] and their log-probabilities [B] (float32 log-softmax of logits / temperature). A temperature
    of 0 takes the most likely token, with its log-probability at temperature 1. One random number a row makes
    a row's draw independent of who else is in the batch. Raises ValueError for logits that are not finite.
    """
    greedy = torch.tensor([t == 0 for t in temperatures], device=logits.device)
    scale = torch.tensor([t if t > 0 else 1.0 for t in temperatures], device=logits.device)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    if not torch.isfinite(logprobs.amax(dim=-1)).all():
        raise ValueError("the model's logits are not finite")
    cumulative = logprobs.exp().cumsum(dim=-1)
    # Scaled by the last entry, which rounding leaves a little beside 1, and kept below it: float32 rounds the
    # largest uniforms up to 1, and a target equal to the end would draw the last token, however impossible.
    end = cumulative[:, -1:]
    targets = torch.tensor(uniforms, device=logits.device, dtype=torch.float32)[:, None] * end
    targets = torch.minimum(targets, torch.nextafter(end, torch.zeros_like(end)))
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    ids = torch.where(greedy, logprobs.argmax(dim=-1), drawn)
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    return ids.tolist(), chosen.tolist()

"""Drawing tokens from logits, each row with its own temperature and its own random number."""

from __future__ import annotations

import torch

# Rows are drawn a few at a time, so that what lies between two steps stays in the processor's cache.
_CHUNK_BYTES = 2**20
_BLOCK = 256  # tokens whose probabilities are summed before the sums are searched


def draw(logits: torch.Tensor, temperatures: list[float], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """One token a row from logits [B, V] by inverting the cumulative distribution at ``uniforms`` [B] in [0, 1).

    Returns ids [B] and their log-probabilities [B] (float32 log-softmax of logits / temperature). A temperature
    of 0 takes the most likely token, with its log-probability at temperature 1. One random number a row makes
    a row's draw independent of who else is in the batch. Raises ValueError for logits that are not finite.
    """
    rows = logits.shape[0] if logits.device.type != "cpu" else max(1, _CHUNK_BYTES // (4 * logits.shape[1]))
    ids: list[torch.Tensor] = []
    logprobs: list[torch.Tensor] = []
    numbers = torch.tensor(uniforms, device=logits.device, dtype=torch.float32)
    for start in range(0, logits.shape[0], rows):
        part = slice(start, start + rows)
        found = _draw(logits[part], temperatures[part], numbers[part])
        ids.append(found[0])
        logprobs.append(found[1])
    return torch.cat(ids).tolist(), torch.cat(logprobs).tolist()


def _draw(logits: torch.Tensor, temperatures: list[float], uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.float()
    if any(t not in (0, 1) for t in temperatures):
        logits = logits / torch.tensor([t or 1.0 for t in temperatures], device=logits.device)[:, None]
    peak, best = logits.max(dim=-1, keepdim=True)
    if not torch.isfinite(peak).all():
        raise ValueError("the model's logits are not finite")
    weights = (logits - peak).exp_()
    blocks = torch.nn.functional.pad(weights, (0, -weights.shape[1] % _BLOCK)).unflatten(1, (-1, _BLOCK))
    cumulative = blocks.sum(dim=-1).cumsum(dim=-1)
    end = cumulative[:, -1:]
    targets = _below(uniforms[:, None] * end, end)
    block = torch.searchsorted(cumulative, targets, right=True)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, _BLOCK))[:, 0].cumsum(dim=-1)
    offset = torch.searchsorted(inside, _below(targets - before, inside[:, -1:]), right=True)
    greedy = torch.tensor([t == 0 for t in temperatures], device=logits.device)[:, None]
    chosen = torch.where(greedy, best, block * _BLOCK + offset)
    return chosen[:, 0], (logits.gather(1, chosen) - peak - end.log())[:, 0]


def _below(targets: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """``targets`` kept below ``end``: rounding could bring the largest up to it, and a target equal to the end would
    draw the last token, however impossible."""
    return torch.minimum(targets, torch.nextafter(end, torch.zeros_like(end)))

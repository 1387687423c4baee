"""One forward pass for everybody: a token of each running turn and the new tokens of those that join, side by side.

The pass is one sequence of N tokens. Its matrix products do not care whose tokens they are; only attention does, which
goes row by row of the KV slab. So a prompt of twenty tokens costs twenty tokens, not a pass of its own, and nothing is
padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Segment:
    """``count`` new tokens of slab row ``row``, from column ``start`` on; they stand at ``at`` in the pass.

    ``mask`` bool [count, start + count]: what each may see; None where that is plain causal (``start`` is 0).
    """

    row: int
    start: int
    count: int
    at: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PackedPass:
    """``columns`` [R]: where the new token of each of the R first rows is written; ``mask`` bool [R, 1, 1, width].

    ``positions`` [1, N] for the rotary embedding; ``newest`` [R + S]: where in the pass the newest token of each row
    stands, whose logits are wanted.
    """

    columns: torch.Tensor
    mask: torch.Tensor
    segments: tuple[Segment, ...]
    positions: torch.Tensor
    newest: torch.Tensor

    @property
    def running(self) -> int:
        return self.columns.shape[0]

    @property
    def width(self) -> int:
        return self.mask.shape[-1]


def plan_pass(
    lengths: Sequence[int], running: int, joining: Sequence[tuple[int, int]], device: torch.device
) -> PackedPass:
    """A pass over the first ``running`` rows and ``joining`` (row, new tokens); ``lengths``: tokens the rows hold."""
    segments: list[Segment] = []
    positions = list(lengths[:running])
    newest = list(range(running))
    for row, count in joining:
        start, end = lengths[row], lengths[row] + count
        mask = None
        if start:
            places = torch.arange(end, device=device)
            mask = places[None, :] <= places[start:, None]
        segments.append(Segment(row, start, count, len(positions), mask))
        positions.extend(range(start, end))
        newest.append(len(positions) - 1)
    columns = torch.tensor(lengths[:running], dtype=torch.long, device=device)
    places = torch.arange(max(lengths[:running], default=-1) + 1, device=device)
    return PackedPass(
        columns=columns,
        mask=(places[None, :] <= columns[:, None])[:, None, None, :],
        segments=tuple(segments),
        positions=torch.tensor([positions], device=device),
        newest=torch.tensor(newest, device=device),
    )


def packed_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: PackedPass, scaling: float
) -> torch.Tensor:
    """query [1, heads, N, D] over the slab's keys and values [rows, kv_heads, columns, D] -> [1, N, heads, D].

    The heads of a group share a key-value head without repeating it: for running rows they stand as query positions,
    which reads the cache once; for segments the keys are expanded, which copies nothing.
    """
    _, heads, total, dim = query.shape
    kv_heads, running, width = keys.shape[1], plan.running, plan.width
    grouped = query[0].view(kv_heads, heads // kv_heads, total, dim)
    out = query.new_empty(1, total, heads, dim)
    attend = torch.nn.functional.scaled_dot_product_attention
    if running:
        found = attend(
            grouped[:, :, :running].permute(2, 0, 1, 3),
            keys[:running, :, :width],
            values[:running, :, :width],
            attn_mask=plan.mask,
            scale=scaling,
        )
        out[0, :running] = found.reshape(running, heads, dim)
    for segment in plan.segments:
        end, until = segment.start + segment.count, segment.at + segment.count
        part = grouped[:, :, segment.at : until]
        shape = (kv_heads, heads // kv_heads, end, dim)
        found = attend(
            part,
            keys[segment.row, :, None, :end].expand(shape),
            values[segment.row, :, None, :end].expand(shape),
            attn_mask=segment.mask,
            is_causal=segment.mask is None,
            scale=scaling,
        )
        out[0, segment.at : until] = found.permute(2, 0, 1, 3).reshape(segment.count, heads, dim)
    return out

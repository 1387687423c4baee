"""Advantages from rewards of groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STD_EPS = 1e-6


def group_advantages(
    rewards: Sequence[float | None], group_ids: Sequence[str | int], *, kind: str, std_ddof: int = 1
) -> Tensor:
    """One advantage a trajectory, float64 [B], from its reward and those of its group.

    ``group_norm`` (paper Eq. 4; GRPO, arXiv 2402.03300): (R - mean) / (std + 1e-6), std with ``std_ddof``.
    ``group_mean`` (Dr. GRPO, arXiv 2503.20783): R - mean.
    A reward of None marks an unscored trajectory: left out of mean and std, its advantage is 0. A group whose
    rewards are all equal, or with one scored member, gives exactly 0.0, not a float residue.
    Raises ValueError for an unknown kind or lengths that differ.
    """
    if kind not in ("group_norm", "group_mean"):
        raise ValueError(f"advantage={kind!r} is not known; choose group_norm or group_mean")
    if len(rewards) != len(group_ids):
        raise ValueError(f"{len(rewards)} rewards for {len(group_ids)} group ids")
    members: dict[str | int, list[int]] = {}
    for place, (reward, group) in enumerate(zip(rewards, group_ids, strict=True)):
        if reward is not None:
            members.setdefault(group, []).append(place)
    advantages = torch.zeros(len(rewards), dtype=torch.float64)
    for places in members.values():
        rewards_G = torch.tensor([rewards[place] for place in places], dtype=torch.float64)
        if bool((rewards_G == rewards_G[0]).all()):
            continue
        centred = rewards_G - rewards_G.mean()
        if kind == "group_norm":
            centred = centred / (rewards_G.std(correction=std_ddof) + STD_EPS)
        advantages[places] = centred
    return advantages

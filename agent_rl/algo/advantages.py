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
    ``rloo`` (arXiv 2402.14740): R minus the mean of the other members = G / (G - 1) (R - mean).
    ``reinforce_pp`` (REINFORCE++, arXiv 2501.03262): as ``group_norm``, with the whole batch as one group.
    A reward of None marks an unscored trajectory: left out of mean and std, its advantage is 0. A group whose
    rewards are all equal, or with one scored member, gives exactly 0.0, not a float residue.
    Raises ValueError for an unknown kind or lengths that differ.
    """
    if kind not in ("group_norm", "group_mean", "rloo", "reinforce_pp"):
        raise ValueError(f"advantage={kind!r} is not known; choose group_norm, group_mean, rloo or reinforce_pp")
    if len(rewards) != len(group_ids):
        raise ValueError(f"{len(rewards)} rewards for {len(group_ids)} group ids")
    members: dict[str | int, list[int]] = {}
    for place, (reward, group) in enumerate(zip(rewards, group_ids, strict=True)):
        if reward is not None:
            members.setdefault("batch" if kind == "reinforce_pp" else group, []).append(place)
    advantages = torch.zeros(len(rewards), dtype=torch.float64)
    for places in members.values():
        rewards_G = torch.tensor([rewards[place] for place in places], dtype=torch.float64)
        if bool((rewards_G == rewards_G[0]).all()):
            continue
        centred = rewards_G - rewards_G.mean()
        if kind in ("group_norm", "reinforce_pp"):
            centred = centred / (rewards_G.std(correction=std_ddof) + STD_EPS)
        elif kind == "rloo":
            centred = centred * (len(places) / (len(places) - 1))
        advantages[places] = centred
    return advantages

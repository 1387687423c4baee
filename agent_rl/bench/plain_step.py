"""The common training step, as the peer of ours: padded micro-batches in the given order, logits at every position."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agent_rl.algo.objective import Objective
from agent_rl.algo.records import TokenBatch
from agent_rl.train.batch import TrainSequence
from agent_rl.train.policy import Policy
from agent_rl.train.update import count_batch


def plain_accumulate(
    policy: Policy, objective: Objective, sequences: Sequence[TrainSequence], *, rows: int, temperature: float
) -> float:
    """Sum the gradients of ``sequences`` into the policy's, ``rows`` sequences at a time; returns the loss.

    The same loss as ``update.accumulate``: all logits [B, T, V], in float32 or wider, log_softmax, gather.
    """
    counts = count_batch(sequences)
    total = 0.0
    policy.model.train()
    for start in range(0, len(sequences), rows):
        members = sequences[start : start + rows]
        width = max(len(member.ids) for member in members)
        ids_BT = torch.tensor([member.ids + [0] * (width - len(member.ids)) for member in members])
        attention_BT = torch.tensor([[1] * len(m.ids) + [0] * (width - len(m.ids)) for m in members])
        trained_BT = torch.tensor([m.mask + [0] * (width - len(m.mask)) for m in members], dtype=torch.bool)
        ids_BT, attention_BT, trained_BT = (x.to(policy.device) for x in (ids_BT, attention_BT, trained_BT))
        logits_BTV = policy.model(input_ids=ids_BT, attention_mask=attention_BT, use_cache=False).logits
        wide = torch.promote_types(logits_BTV.dtype, torch.float32)  # float64 is to stay float64
        logp_BTV = torch.log_softmax(logits_BTV[:, :-1].to(wide) / temperature, dim=-1)
        logp_BT = logp_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
        chosen = trained_BT[:, 1:]
        row_N = chosen.nonzero()[:, 0]
        logp_N = logp_BT[chosen]
        out = objective.loss(
            TokenBatch(
                logp=logp_N,
                logp_old=logp_N.detach(),
                advantage=torch.tensor([m.advantage for m in members], device=policy.device)[row_N],
                mask=torch.ones_like(logp_N, dtype=torch.bool),
                sequence=row_N + start,
                group=torch.tensor([m.group for m in members], device=policy.device)[row_N],
                counts=counts,
            )
        )
        out.loss.backward()
        total += float(out.loss.detach())
    policy.model.eval()
    return total

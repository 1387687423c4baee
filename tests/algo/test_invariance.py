"""What must not change a loss: the cut into micro-batches, the order, padding, the number of ranks."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_rl.algo.objective import Objective
from agent_rl.algo.records import TokenBatch

from .conftest import make_tokens, select

LENGTHS = [5, 3, 9, 1, 4, 7, 2, 6]
COLUMNS = ("logp_old", "logp_ref", "logp_rollout", "logit", "drawn_weight", "advantage", "sequence", "group")


def piece(batch: TokenBatch, leaf: torch.Tensor, sequences: list[int], padding: int) -> TokenBatch:
    """Some sequences of a batch in a given order, each followed by masked tokens that hold garbage."""
    places, real = [], []
    for sequence in sequences:
        own = (batch.sequence == sequence).nonzero()[:, 0].tolist()
        places += own + [own[-1]] * padding
        real += [True] * len(own) + [False] * padding
    index, kept = torch.tensor(places), torch.tensor(real)
    columns = {name: getattr(batch, name)[index].clone() for name in COLUMNS}
    for name in ("logp_old", "logp_ref", "logp_rollout", "advantage"):
        columns[name][~kept] = float("nan")
    logp = torch.where(kept, leaf[index], torch.tensor(-torch.inf, dtype=leaf.dtype))
    return replace(batch, logp=logp, mask=batch.mask[index] & kept, selected=batch.selected[index] & kept, **columns)


@given(st.permutations(range(len(LENGTHS))), st.integers(1, 8), st.integers(0, 3))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_order_and_padding(objective: Objective, order: list[int], at_once: int, padding: int) -> None:
    """Ranks are the same cut: each adds its share, with the counts of the whole optimiser batch."""
    for update in objective.passes:
        whole = select(objective, make_tokens(LENGTHS), update)
        expected = objective.loss(whole)
        expected.loss.backward()
        leaf = whole.logp.detach().clone().requires_grad_(True)
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, len(order), at_once):
            total = total + objective.loss(piece(whole, leaf, list(order[start : start + at_once]), padding)).loss
        total.backward()
        assert whole.logp.grad is not None
        assert leaf.grad is not None
        assert float(expected.loss.detach()) != 0
        torch.testing.assert_close(total, expected.loss, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(leaf.grad, whole.logp.grad, rtol=1e-6, atol=1e-12)

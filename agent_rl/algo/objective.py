"""The objective: advantage x token weight x surrogate x KL x aggregate x mismatch correction x token filter.

One pure function over one record; each part stands in its own file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_rl.algo.advantages import group_advantages
from agent_rl.algo.aggregate import token_shares
from agent_rl.algo.filters import filter_passes
from agent_rl.algo.kl import kl_term
from agent_rl.algo.mismatch import mismatch_correction
from agent_rl.algo.overlong import overlong_penalty
from agent_rl.algo.records import LossOutput, TokenBatch
from agent_rl.algo.surrogates import policy_term
from agent_rl.algo.weights import token_weight
from agent_rl.config.schema import AlgoConfig


class Objective:
    """An algorithm composed from ``config``; holds no state. Same code in the embedded backend and under verl.

    ``max_response_tokens`` is the run's limit, which ``overlong`` and, where ``constant_length_tokens`` is not
    given, ``aggregate=constant_length`` measure against. Raises ValueError where they need it and it is None.
    """

    def __init__(self, config: AlgoConfig, max_response_tokens: int | None = None) -> None:
        lengths = config.aggregate == "constant_length" and config.constant_length_tokens is None
        if max_response_tokens is None and (lengths or config.overlong is not None):
            raise ValueError(f"algo {config.name!r} needs max_response_tokens")
        self.config = config
        self.max_response_tokens = max_response_tokens

    @property
    def needs_reference(self) -> bool:
        return self.config.kl.beta > 0

    @property
    def needs_drawn_weights(self) -> bool:
        return self.config.token_weight.kind == "random"

    @property
    def needs_old_pass(self) -> bool:
        """Whether a forward pass must precede the first update: the token filters look at a whole batch."""
        return self.config.token_filter.kind != "all"

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of the optimiser updates that one batch gets (Lopti has two)."""
        return filter_passes(self.config.token_filter)

    def shaped_reward(self, reward: float, response_tokens: int) -> float:
        """The reward that advantages are made of; ``response_tokens`` as ``rollout.max_response_tokens`` counts."""
        if self.config.overlong is None:
            return reward
        assert self.max_response_tokens is not None
        return reward + overlong_penalty(self.config.overlong, response_tokens, self.max_response_tokens)

    def advantages(self, rewards: Sequence[float | None], group_ids: Sequence[str | int]) -> Tensor:
        """float64 [B]; see ``group_advantages``."""
        return group_advantages(rewards, group_ids, kind=self.config.advantage, std_ddof=self.config.std_ddof)

    def weights(self, batch: TokenBatch) -> Tensor:
        """w [N], detached, float32 or wider; p from the same forward pass and temperature as ``logp``."""
        config = self.config.token_weight
        logp = (batch.logp if config.prob == "current" else batch.logp_old).detach()
        prob = (logp if logp.dtype is torch.float64 else logp.float()).exp()
        logit = None if batch.logit is None else batch.logit.detach().to(prob)
        return token_weight(config, prob, logit=logit, drawn=batch.drawn_weight)

    def loss(self, batch: TokenBatch) -> LossOutput:
        """Loss of this micro-batch's share of the optimiser batch; add up over micro-batches.

        Computes in float32, or in float64 where ``batch.logp`` is float64. Masked tokens are exactly 0 in the
        loss and in every gradient, and so are tokens that the filter leaves out. Raises ValueError where a
        column that the configuration needs (``logp_ref``, ``logp_rollout``, ``logit``) is None.
        """
        config, mask = self.config, batch.mask
        dtype = torch.float64 if batch.logp.dtype is torch.float64 else torch.float32

        # Masked entries may hold anything, infinities included: 0 * inf would poison the sum, so they are
        # replaced before any arithmetic, not multiplied away after it.
        def clean(values: Tensor) -> Tensor:
            return torch.where(mask, values.to(dtype), 0.0)

        logp, logp_old, advantage = clean(batch.logp), clean(batch.logp_old), clean(batch.advantage)
        weight = torch.where(mask, self.weights(batch).to(dtype), 1.0)
        correction = torch.ones_like(logp)
        if config.mismatch.kind != "none":
            if batch.logp_rollout is None:
                raise ValueError(f"mismatch.kind={config.mismatch.kind} needs logp_rollout")
            correction = mismatch_correction(
                config.mismatch, logp_old, clean(batch.logp_rollout), mask, batch.sequence
            ).detach()
        found = policy_term(config, logp, logp_old, advantage, weight, mask, batch.sequence)
        policy = correction * found.term
        kl = torch.zeros_like(policy)
        if config.kl.beta > 0:
            if batch.logp_ref is None:
                raise ValueError(f"kl.beta={config.kl.beta:g} needs logp_ref")
            kl = kl_term(
                logp,
                clean(batch.logp_ref),
                weight,
                estimator=config.kl.estimator,
                weighting=config.kl.weighting,
                clamp=config.log_ratio_clamp,
            )
        chosen = mask if batch.selected is None else mask & batch.selected
        token_loss = torch.where(chosen, policy + config.kl.beta * kl, 0.0)
        shares = token_shares(
            batch.sequence,
            batch.group,
            batch.counts,
            kind=config.aggregate,
            constant_length_tokens=config.constant_length_tokens or self.max_response_tokens,
        ).to(dtype)

        def column(values: Tensor) -> Tensor:
            return torch.where(mask, values, 0.0).detach()

        return LossOutput(
            loss=(token_loss * shares).sum(),
            weight=column(weight),
            ratio=column(found.ratio),
            policy_term=column(policy),
            kl_term=column(kl),
            token_loss=token_loss.detach(),
            correction=column(correction),
            clipped=found.clipped & chosen,
        )

    def policy_slope(self, batch: TokenBatch, out: LossOutput) -> Tensor:
        """d policy term / d logp [N], for the diagnostics: exactly 0 where a token gets no policy gradient."""
        mask, dtype = batch.mask, out.weight.dtype
        with torch.enable_grad():
            logp = torch.where(mask, batch.logp.detach().to(dtype), 0.0).requires_grad_(True)
            logp_old, advantage = (
                torch.where(mask, values.to(dtype), 0.0) for values in (batch.logp_old, batch.advantage)
            )
            found = policy_term(self.config, logp, logp_old, advantage, out.weight, mask, batch.sequence)
            (slope,) = torch.autograd.grad(found.term.sum(), logp)
        chosen = mask if batch.selected is None else mask & batch.selected
        return torch.where(chosen, out.correction * slope, 0.0)

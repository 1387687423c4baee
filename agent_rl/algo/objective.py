"""The objective: advantage x token weight x surrogate x KL x aggregate, one pure function over one record."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_rl.algo.advantages import group_advantages
from agent_rl.algo.aggregate import token_shares
from agent_rl.algo.kl import kl_term
from agent_rl.algo.records import LossOutput, TokenBatch
from agent_rl.algo.surrogates import clipped_term
from agent_rl.algo.weights import probability_weight
from agent_rl.config.schema import AlgoConfig


class Objective:
    """An algorithm composed from ``config``; holds no state. Same code in the embedded backend and under verl."""

    def __init__(self, config: AlgoConfig) -> None:
        self.config = config

    @property
    def needs_reference(self) -> bool:
        return self.config.kl.beta > 0

    @property
    def needs_logit(self) -> bool:
        weight = self.config.token_weight
        return weight.kind == "probability" and weight.form == "raw_logit"

    def advantages(self, rewards: Sequence[float | None], group_ids: Sequence[str | int]) -> Tensor:
        """float64 [B]; see ``group_advantages``."""
        return group_advantages(rewards, group_ids, kind=self.config.advantage, std_ddof=self.config.std_ddof)

    def weights(self, batch: TokenBatch) -> Tensor:
        """w [N], detached; from the current policy's probability (same forward pass, same temperature)."""
        weight = self.config.token_weight
        if weight.kind == "none":
            return torch.ones_like(batch.logp).detach()
        logp = batch.logp if weight.prob == "current" else batch.logp_old
        logit = None if batch.logit is None else batch.logit.detach().to(logp.dtype)
        return probability_weight(weight, logp.detach().exp(), logit)

    def loss(self, batch: TokenBatch) -> LossOutput:
        """Loss of this micro-batch's share of the optimiser batch; add up over micro-batches.

        Computes in float32, or in float64 where ``batch.logp`` is float64. Masked tokens are exactly 0 in the
        loss and in every gradient.
        """
        config = self.config
        dtype = torch.float64 if batch.logp.dtype is torch.float64 else torch.float32
        # Masked entries may hold anything, infinities included: 0 * inf would poison the sum, so they are
        # replaced before any arithmetic, not multiplied away after it.
        logp = torch.where(batch.mask, batch.logp.to(dtype), 0.0)
        logp_old = torch.where(batch.mask, batch.logp_old.to(dtype), 0.0)
        advantage = torch.where(batch.mask, batch.advantage.to(dtype), 0.0)
        weight = self.weights(batch).to(dtype)
        log_ratio = logp - logp_old
        if config.log_ratio_clamp is not None:
            log_ratio = log_ratio.clamp(-config.log_ratio_clamp, config.log_ratio_clamp)
        ratio = log_ratio.exp()
        policy = clipped_term(
            ratio,
            advantage,
            weight,
            clip_on=config.clip_on,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
        )
        token_loss = policy
        kl = torch.zeros_like(policy)
        if config.kl.beta > 0:
            if batch.logp_ref is None:
                raise ValueError(f"kl.beta={config.kl.beta:g} needs logp_ref")
            kl = kl_term(
                logp,
                torch.where(batch.mask, batch.logp_ref.to(dtype), 0.0),
                weight,
                estimator=config.kl.estimator,
                weighting=config.kl.weighting,
                clamp=config.log_ratio_clamp,
            )
            token_loss = policy + config.kl.beta * kl
        token_loss = torch.where(batch.mask, token_loss, 0.0)
        shares = token_shares(
            batch.sequence,
            batch.group,
            batch.counts,
            kind=config.aggregate,
            constant_length_tokens=config.constant_length_tokens,
        ).to(dtype)
        loss = (token_loss * shares).sum()
        return LossOutput(
            loss=loss,
            weight=torch.where(batch.mask, weight, 0.0).detach(),
            ratio=torch.where(batch.mask, ratio, 0.0).detach(),
            policy_term=torch.where(batch.mask, policy, 0.0).detach(),
            kl_term=torch.where(batch.mask, kl, 0.0).detach(),
            token_loss=token_loss.detach(),
            coefficient=self._policy_gradient(ratio, advantage, weight, batch.mask),
        )

    def _policy_gradient(self, ratio: Tensor, advantage: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        """d policy_term / d logp [N]: exactly 0 where the clip holds the token (the dead ones)."""
        with torch.enable_grad():
            free = ratio.detach().requires_grad_(True)
            term = clipped_term(
                free,
                advantage,
                weight,
                clip_on=self.config.clip_on,
                clip_low=self.config.clip_low,
                clip_high=self.config.clip_high,
                dual_clip=self.config.dual_clip,
            )
            (gradient,) = torch.autograd.grad(term.sum(), free)
        return torch.where(mask, gradient * ratio.detach(), 0.0)

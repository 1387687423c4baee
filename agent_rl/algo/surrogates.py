"""The policy term of one token, to be minimised: one small function for each surrogate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.algo.sequences import sequence_mean
from agent_rl.config.schema import AlgoConfig


@dataclass(slots=True)
class PolicyTerm:
    """Shapes [N]. ``ratio`` is the one that the surrogate uses; ``clipped`` where its clip holds the token."""

    term: Tensor
    ratio: Tensor
    clipped: Tensor


def policy_term(
    config: AlgoConfig,
    logp: Tensor,
    logp_old: Tensor,
    advantage: Tensor,
    weight: Tensor,
    mask: Tensor,
    sequence: Tensor,
) -> PolicyTerm:
    """The surrogate of ``config`` for tokens [N]; gradient flows through ``logp`` alone.

    ``mask`` bool and ``sequence`` long [N] are read by the surrogates of whole sequences.
    """
    log_ratio = logp - logp_old
    if config.log_ratio_clamp is not None:
        log_ratio = log_ratio.clamp(-config.log_ratio_clamp, config.log_ratio_clamp)
    match config.surrogate:
        case "clip":
            return _clip(config, log_ratio.exp(), advantage, weight)
        case "gspo":
            return _gspo(config, logp, log_ratio, advantage, weight, mask, sequence)
        case "cispo":
            return _cispo(config, logp, log_ratio, advantage, weight)
        case "reinforce":
            return PolicyTerm(-weight * advantage * logp, log_ratio.detach().exp(), torch.zeros_like(mask))


def _clip(config: AlgoConfig, ratio: Tensor, advantage: Tensor, weight: Tensor) -> PolicyTerm:
    """PPO's pessimistic term.

    ``clip_on=ratio``: -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).
    ``clip_on=weighted_ratio`` (TR-GRPO paper, Eq. 9 to the letter): -min(w r A, clip(w r, ...) A).
    ``dual_clip`` c (arXiv 1912.09729): for A < 0 the term is at most -c A (times w where w stands outside).
    """
    assert config.clip_low is not None
    inner = weight * ratio if config.clip_on == "weighted_ratio" else ratio
    free, held = -inner * advantage, -inner.clamp(1 - config.clip_low, 1 + config.clip_high) * advantage
    term, clipped = torch.maximum(free, held), held > free
    if config.dual_clip is not None:
        bound = -config.dual_clip * advantage
        beyond = (advantage < 0) & (term > bound)
        term, clipped = torch.where(beyond, bound, term), clipped | beyond
    return PolicyTerm(term if config.clip_on == "weighted_ratio" else weight * term, ratio, clipped)


def _gspo(
    config: AlgoConfig,
    logp: Tensor,
    log_ratio: Tensor,
    advantage: Tensor,
    weight: Tensor,
    mask: Tensor,
    sequence: Tensor,
) -> PolicyTerm:
    """GSPO (arXiv 2507.18071), token form: the length-normalised ratio of the whole sequence in every token,
    sg[s] exp(logp - sg[logp]), so that a token's weight multiplies its own gradient alone."""
    mean = sequence_mean(log_ratio.detach(), mask, sequence)
    return _clip(config, (mean + logp - logp.detach()).exp(), advantage, weight)


def _cispo(config: AlgoConfig, logp: Tensor, log_ratio: Tensor, advantage: Tensor, weight: Tensor) -> PolicyTerm:
    """CISPO (arXiv 2506.13585): -w sg[clip(r)] A logp. The clip bounds a factor: no token loses its gradient."""
    ratio = log_ratio.detach().exp()
    held = ratio.clamp(None if config.clip_low is None else 1 - config.clip_low, 1 + config.clip_high)
    return PolicyTerm(-weight * held * advantage * logp, ratio, held != ratio)

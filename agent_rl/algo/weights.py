"""Token weights: constants for differentiation that grow with the token's own probability."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_rl.config.schema import TokenWeightConfig


def probability_weight(config: TokenWeightConfig, prob: Tensor, logit: Tensor | None = None) -> Tensor:
    """w = clip(alpha [sigmoid(x) - mu], lower, upper) (paper Eq. 11); same shape and dtype as ``prob``.

    ``form`` says what x is: ``multiply`` p * tau (the reading that fits the paper's stated ranges and its
    Table 7), ``divide`` p / tau (to the letter; constant 1 at the defaults), ``raw_logit`` h / tau with h the
    sampled token's logit (raises ValueError where ``logit`` is None).
    """
    if config.form == "multiply":
        argument = prob * config.tau
    elif config.form == "divide":
        argument = prob / config.tau
    else:
        if logit is None:
            raise ValueError("token_weight.form=raw_logit needs the sampled tokens' logits")
        argument = logit / config.tau
    return (config.alpha * (torch.sigmoid(argument) - config.mu)).clamp(config.lower, config.upper)


def constant_weight_warning(config: TokenWeightConfig) -> str | None:
    """A warning where w(p = 0) equals w(p = 1), so that the objective is GRPO up to a factor; else None."""
    if config.kind == "none" or config.form == "raw_logit":
        return None
    ends = probability_weight(config, torch.tensor([0.0, 1.0], dtype=torch.float64))
    if ends[0] != ends[1]:
        return None
    return (
        f"token_weight (form={config.form}, tau={config.tau:g}, lower={config.lower:g}, upper={config.upper:g}) "
        f"is the constant {float(ends[0]):g} for every probability: this objective is GRPO up to that factor"
    )

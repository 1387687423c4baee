"""Token weights: constants for differentiation, most of them a function of the token's own probability."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from agent_rl.config.schema import TokenWeightConfig


def token_weight(
    config: TokenWeightConfig, prob: Tensor, *, logit: Tensor | None = None, drawn: Tensor | None = None
) -> Tensor:
    """w for each token; shape, dtype and device of ``prob``.

    ``none`` 1. ``probability`` Eq. 11 (``probability_weight``). ``reverse`` 2 - w and ``random`` U[0.5, 1.5], the
    ablations of the TR-GRPO paper's Table 4; random ones come in as ``drawn``. ``linear`` a p + 1 - a, the
    advantage reweighting of arXiv 2505.12929 (A-R).
    Raises ValueError where ``logit`` (form=raw_logit) or ``drawn`` (kind=random) is needed and None.
    """
    match config.kind:
        case "none":
            return torch.ones_like(prob)
        case "probability":
            return probability_weight(config, prob, logit)
        case "reverse":
            return 2 - probability_weight(config, prob, logit)
        case "linear":
            return config.linear_a * prob + (1 - config.linear_a)
        case "random":
            if drawn is None:
                raise ValueError("token_weight.kind=random needs the weights that were drawn for the rollout")
            return drawn.to(prob)


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


def draw_weights(count: int, seed: int) -> list[float]:
    """Weights of kind=random for ``count`` tokens of one rollout: U[0.5, 1.5], the same for the same seed."""
    rng = Random(seed)
    return [rng.uniform(0.5, 1.5) for _ in range(count)]


def weight_curve(config: TokenWeightConfig, prob: Tensor) -> Tensor | None:
    """w over p, for a picture; None where w is not a function of p (random, raw_logit)."""
    if config.kind == "random" or (config.sigmoidal and config.form == "raw_logit"):
        return None
    return token_weight(config, prob)


def constant_weight_warning(config: TokenWeightConfig) -> str | None:
    """A warning where w(p = 0) equals w(p = 1), so that the objective is GRPO up to a factor; else None."""
    ends = weight_curve(config, torch.tensor([0.0, 1.0], dtype=torch.float64))
    if config.kind == "none" or ends is None or ends[0] != ends[1]:
        return None
    settings = f"form={config.form}, tau={config.tau:g}, lower={config.lower:g}, upper={config.upper:g}"
    return (
        f"token_weight (kind={config.kind}, {settings if config.sigmoidal else f'linear_a={config.linear_a:g}'}) is "
        f"the constant {float(ends[0]):g} for every probability: this objective is GRPO up to that factor"
    )

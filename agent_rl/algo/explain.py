"""An objective in words: its formula with the numbers in it, the curve of w, and one line for a run's start."""

from __future__ import annotations

import torch

from agent_rl.algo.weights import constant_weight_warning, weight_curve
from agent_rl.config.schema import AlgoConfig, TokenWeightConfig

LETTER = "tr_grpo_literal"
PROBABILITIES = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0)
BAR_CHARACTERS = 40


def start_line(config: AlgoConfig) -> str:
    """What a run says at its start: the objective, and for TR-GRPO which of its readings this is."""
    line = f"objective {config.name}: {_terms(config)}"
    weight = config.token_weight
    if weight.kind != "none":
        line += f", w = {_weight(weight)}"
    if weight.sigmoidal:
        clip = {"ratio": "outside the clip", "weighted_ratio": "inside the clip (Eq. 9)"}[config.clip_on]
        kl = {
            "outside": " and outside the KL (Eq. 12)",
            "inside": " and inside the KL (Eq. 10)",
            "none": " and not in the KL",
        }[config.kl.weighting]
        letter = (weight.kind, weight.form, config.clip_on, config.kl.weighting)
        line += f"; w stands {clip}{kl if config.kl.beta else ''}. "
        if letter == ("probability", "divide", "weighted_ratio", "inside"):
            line += "This is the paper to the letter"
        else:
            line += f"The paper to the letter is algo={LETTER}"
    return line


def formula(config: AlgoConfig) -> list[str]:
    """Lines: the loss, and a definition of every letter in it."""
    lines = [
        f"loss = sum over trained tokens of  share [ {_terms(config)} ]",
        f"A     = {_advantage(config)}",
        f"r     = {_ratio(config)}",
        f"w     = {_weight(config.token_weight)}, constant for differentiation",
        f"share = {_share(config)}",
    ]
    if config.token_weight.kind == "none":
        del lines[3]
    if config.surrogate == "reinforce":
        del lines[2]
    if config.kl.beta:
        lines.append("rho   = pi_ref / pi, pi_ref the policy as RL began")
    if config.mismatch.kind != "none":
        lines.append(f"c     = {_mismatch(config)}")
    if config.log_ratio_clamp is not None:
        lines.append(f"log-ratios are held to +-{config.log_ratio_clamp:g}")
    if config.overlong is not None:
        start = 1 - config.overlong.buffer_fraction
        lines.append(
            f"R falls by up to {config.overlong.penalty:g} as a response grows from {start:g} to 1 of "
            "rollout.max_response_tokens"
        )
    if config.group_filter.kind == "drop_uniform":
        lines.append(
            f"groups of equal rewards are dropped and replaced, up to {config.group_filter.max_refills} times a step"
        )
    if config.token_filter.kind == "high_entropy":
        lines.append(f"only the {config.token_filter.top_fraction:.0%} of tokens with the highest entropy take part")
    elif config.token_filter.kind == "low_then_high":
        lines.append(f"two updates: tokens with p_old < {config.token_filter.eta:g}, then the others")
    return lines


def curve_lines(config: AlgoConfig) -> list[str]:
    """w over p as a table with bars; empty where every token weighs 1."""
    weight = config.token_weight
    if weight.kind == "none":
        return []
    found = weight_curve(weight, torch.tensor(PROBABILITIES, dtype=torch.float64))
    if found is None:
        return [f"w is not a function of p (kind={weight.kind}, form={weight.form})"]
    top = max(float(found.max()), 1.0)
    lines = ["    p       w"]
    for prob, value in zip(PROBABILITIES, found.tolist(), strict=True):
        lines.append(f"{prob:5.2f}  {value:6.3f}  {'#' * round(BAR_CHARACTERS * max(value, 0.0) / top)}")
    warning = constant_weight_warning(weight)
    return [*lines, *([f"warning: {warning}"] if warning else [])]


def _terms(config: AlgoConfig) -> str:
    return _policy(config) + (f" + {config.kl.beta:g} {_kl(config)}" if config.kl.beta else "")


def _policy(config: AlgoConfig) -> str:
    c = "" if config.mismatch.kind == "none" else "c "
    w = "" if config.token_weight.kind == "none" else "w "
    low = "-inf" if config.clip_low is None else f"{1 - config.clip_low:g}"
    clip = f"{low}, {1 + config.clip_high:g}"
    if config.surrogate == "reinforce":
        return f"-{c}{w}A log pi"
    if config.surrogate == "cispo":
        return f"-{c}{w}sg[clip(r, {clip})] A log pi"
    inner, outer = ("w r", "") if config.clip_on == "weighted_ratio" else ("r", w)
    term = f"-{c}{outer}min({inner} A, clip({inner}, {clip}) A)"
    return term + (f" (at most -{config.dual_clip:g} A where A < 0)" if config.dual_clip else "")


def _kl(config: AlgoConfig) -> str:
    if config.kl.weighting == "inside":
        return "(w rho - log(w rho) - 1)"
    term = {"k1": "(-log rho)", "k2": "(log rho)^2 / 2", "k3": "(rho - log rho - 1)"}[config.kl.estimator]
    return f"w {term}" if config.kl.weighting == "outside" else term


def _weight(weight: TokenWeightConfig) -> str:
    prob = "p" if weight.prob == "current" else "p_old"
    if weight.kind == "linear":
        return f"{weight.linear_a:g} {prob} + {1 - weight.linear_a:g}"
    if weight.kind == "random":
        return "U[0.5, 1.5], drawn once for each token of a rollout"
    argument = {
        "multiply": f"{weight.tau:g} {prob}",
        "divide": f"{prob} / {weight.tau:g}",
        "raw_logit": f"logit / {weight.tau:g}",
    }[weight.form]
    clipped = f"clip({weight.alpha:g} [sigmoid({argument}) - {weight.mu:g}], {weight.lower:g}, {weight.upper:g})"
    return clipped if weight.kind == "probability" else f"2 - {clipped}"


def _advantage(config: AlgoConfig) -> str:
    std = f"(std + 1e-6), std with ddof {config.std_ddof}"
    return {
        "group_norm": f"(R - mean) / {std}, over the group",
        "group_mean": "R - mean of the group",
        "rloo": "R - mean of the group's other members",
        "reinforce_pp": f"(R - mean) / {std}, over the whole step",
    }[config.advantage]


def _ratio(config: AlgoConfig) -> str:
    if config.surrogate == "gspo":
        return "exp(mean over the response of log(pi / pi_old)), one for a whole response"
    return "pi / pi_old"


def _share(config: AlgoConfig) -> str:
    constant = config.constant_length_tokens or "rollout.max_response_tokens"
    return {
        "token_mean": "1 / trained tokens of the optimiser batch",
        "group_token_mean": "1 / (groups x trained tokens of the group)",
        "sequence_mean": "1 / (sequences x trained tokens of the sequence)",
        "constant_length": f"1 / (sequences x {constant})",
    }[config.aggregate]


def _mismatch(config: AlgoConfig) -> str:
    unit, kind = config.mismatch.kind.split("_")
    ratio = f"pi_old / pi_rollout of the {unit}"
    cap = f"{config.mismatch.cap:g}"
    return f"min({ratio}, {cap})" if kind == "tis" else f"{ratio}, and 0 above {cap}"

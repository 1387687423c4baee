"""What the objective did to a batch: a mechanism is only believed when it is seen."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent_rl.algo.objective import Objective
from agent_rl.algo.records import LossOutput, TokenBatch
from agent_rl.config.schema import AlgoConfig

PROBABILITY_EDGES = (0.0, 0.1, 0.3, 0.7, 0.9, 1.0)


@dataclass(slots=True)
class TokenSums:
    """Sums over trained tokens, and extremes: they add up over micro-batches and over ranks."""

    sums: dict[str, float] = field(default_factory=dict)
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)

    def merge(self, other: TokenSums) -> None:
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in other.lows.items():
            self.lows[name] = min(self.lows.get(name, value), value)
        for name, value in other.highs.items():
            self.highs[name] = max(self.highs.get(name, value), value)


def token_sums(objective: Objective, batch: TokenBatch, out: LossOutput, entropy: Tensor) -> TokenSums:
    """Of one micro-batch; ``entropy`` [N] in nats, at the sampling temperature. Without extremes where nothing is
    trained; the names of the sums depend on the configuration alone."""
    selected = batch.mask if batch.selected is None else batch.selected
    columns = (
        *(batch.logp.detach(), batch.advantage, entropy.detach()),
        *(out.weight, out.ratio, objective.policy_slope(batch, out), out.kl_term, out.correction),
        *(out.clipped, selected),
    )
    tokens = torch.stack([column.float() for column in columns])[:, batch.mask].double().cpu()
    logp, advantage, entropy, weight, ratio, slope, kl, correction, clipped, chosen = tokens
    positive, negative, prob = advantage > 0, advantage < 0, logp.exp()
    parts = {
        "tokens": torch.ones_like(logp),
        **{"weight": weight, "ratio": ratio, "kl": kl, "entropy": entropy, "prob": prob, "correction": correction},
        "positive": positive,
        "negative": negative,
        "clipped_positive": clipped.bool() & positive,
        "clipped_negative": clipped.bool() & negative,
        "dead_positive": (slope == 0) & positive,
        **{"selected": chosen, "selected_entropy": entropy * chosen, "selected_prob": prob * chosen},
    }
    weighting, mismatch = objective.config.token_weight, objective.config.mismatch
    if weighting.sigmoidal:
        bounds = (weighting.lower, weighting.upper)
        low, high = bounds if weighting.kind == "probability" else (2 - bounds[1], 2 - bounds[0])
        # The columns went through float32: 1.4 is not 1.4 there.
        parts["at_lower"], parts["at_upper"] = weight <= low + 1e-6, weight >= high - 1e-6
    if mismatch.kind != "none":
        parts["bounded"] = correction >= mismatch.cap if mismatch.kind.endswith("tis") else correction == 0
    # |d term / d logits| of a softmax token lies between |slope| (1 - p) and sqrt(2) times that (the factor of the
    # TR-GRPO paper's Theorem 3.1); the lower bound is what is shared out.
    pull = slope.abs() * (1 - prob)
    for place, (low, high) in enumerate(itertools.pairwise(PROBABILITY_EDGES)):
        parts[f"pull_{place}"] = pull * ((prob >= low) & ((prob < high) | (high == 1.0)))
    found = TokenSums({name: float(values.double().sum()) for name, values in parts.items()})
    if tokens.shape[1]:
        found.lows = {"weight": float(weight.min())}
        extremes = {"weight": weight, "ratio": ratio, "correction": correction}
        found.highs = {name: float(values.max()) for name, values in extremes.items()}
    return found


def metrics_of_sums(config: AlgoConfig, found: TokenSums) -> dict[str, float]:
    """Means over trained tokens, as one flat dict. Empty where none was trained."""
    sums = found.sums
    count = sums.get("tokens", 0.0)
    if not count:
        return {}
    metrics = {
        "weight/mean": sums["weight"] / count,
        "weight/min": found.lows["weight"],
        "weight/max": found.highs["weight"],
        "objective/ratio_mean": sums["ratio"] / count,
        "objective/ratio_max": found.highs["ratio"],
        "objective/kl": sums["kl"] / count,
        "objective/entropy": sums["entropy"] / count,
        "objective/clip_fraction_pos": _share(sums["clipped_positive"], sums["positive"]),
        "objective/clip_fraction_neg": _share(sums["clipped_negative"], sums["negative"]),
        "objective/dead_positive_fraction": _share(sums["dead_positive"], sums["positive"]),
        "objective/prob_mean": sums["prob"] / count,
    }
    if config.token_weight.sigmoidal:
        metrics["weight/at_lower"], metrics["weight/at_upper"] = sums["at_lower"] / count, sums["at_upper"] / count
    if config.mismatch.kind != "none":
        metrics["mismatch/correction_mean"] = sums["correction"] / count
        metrics["mismatch/correction_max"] = found.highs["correction"]
        metrics["mismatch/correction_bounded_fraction"] = sums["bounded"] / count
    if config.token_filter.kind != "all":
        metrics["filter/selected_fraction"] = sums["selected"] / count
        metrics["filter/selected_entropy"] = _share(sums["selected_entropy"], sums["selected"])
        metrics["filter/selected_prob"] = _share(sums["selected_prob"], sums["selected"])
    return metrics | _gradient_shares(sums)


@dataclass(slots=True)
class ObjectiveDiagnostics:
    """Collects the trained tokens of every micro-batch of a step; ``metrics`` gives one flat dict."""

    objective: Objective
    _found: TokenSums = field(default_factory=TokenSums)

    def add(self, batch: TokenBatch, out: LossOutput, entropy: Tensor) -> None:
        """``entropy`` [N] in nats, at the sampling temperature."""
        self._found.merge(token_sums(self.objective, batch, out, entropy))

    def metrics(self) -> dict[str, float]:
        return metrics_of_sums(self.objective.config, self._found)


def _gradient_shares(sums: Mapping[str, float]) -> dict[str, float]:
    """Share of the gradient norm by bucket of p."""
    edges = list(itertools.pairwise(PROBABILITY_EDGES))
    total = sum(sums[f"pull_{place}"] for place in range(len(edges)))
    return {
        f"objective/grad_share_p{low:g}_{high:g}": _share(sums[f"pull_{place}"], total)
        for place, (low, high) in enumerate(edges)
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0

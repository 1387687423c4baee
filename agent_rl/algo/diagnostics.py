"""What the objective did to a batch: a mechanism is only believed when it is seen."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent_rl.algo.objective import Objective
from agent_rl.algo.records import LossOutput, TokenBatch

PROBABILITY_EDGES = (0.0, 0.1, 0.3, 0.7, 0.9, 1.0)


@dataclass(slots=True)
class ObjectiveDiagnostics:
    """Collects the trained tokens of every micro-batch of a step; ``metrics`` gives one flat dict."""

    objective: Objective
    _tokens: list[Tensor] = field(default_factory=list)

    def add(self, batch: TokenBatch, out: LossOutput, entropy: Tensor) -> None:
        """``entropy`` [N] in nats, at the sampling temperature."""
        columns = (
            *(batch.logp.detach(), batch.advantage, entropy.detach()),
            *(out.weight, out.ratio, self.objective.policy_slope(batch, out), out.kl_term),
            *(out.correction, out.clipped),
        )
        selected = batch.mask if batch.selected is None else batch.selected
        self._tokens.append(torch.stack([c.float() for c in (*columns, selected)])[:, batch.mask].cpu())

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens. Empty where none was trained."""
        if not self._tokens:
            return {}
        tokens = torch.cat(self._tokens, dim=1).double()
        if not tokens.shape[1]:
            return {}
        logp, advantage, entropy, weight, ratio, slope, kl, correction, clipped, selected = tokens
        positive, negative, prob = advantage > 0, advantage < 0, logp.exp()
        found = {
            "weight/mean": float(weight.mean()),
            "weight/min": float(weight.min()),
            "weight/max": float(weight.max()),
            "objective/ratio_mean": float(ratio.mean()),
            "objective/ratio_max": float(ratio.max()),
            "objective/kl": float(kl.mean()),
            "objective/entropy": float(entropy.mean()),
            "objective/clip_fraction_pos": _share(clipped.bool() & positive, positive),
            "objective/clip_fraction_neg": _share(clipped.bool() & negative, negative),
            "objective/dead_positive_fraction": _share((slope == 0) & positive, positive),
            "objective/prob_mean": float(prob.mean()),
        }
        config = self.objective.config
        weighting, mismatch = config.token_weight, config.mismatch
        if weighting.sigmoidal:
            bounds = (weighting.lower, weighting.upper)
            low, high = bounds if weighting.kind == "probability" else (2 - bounds[1], 2 - bounds[0])
            # The columns are float32: 1.4 is not 1.4 there.
            found["weight/at_lower"] = float((weight <= low + 1e-6).double().mean())
            found["weight/at_upper"] = float((weight >= high - 1e-6).double().mean())
        if mismatch.kind != "none":
            bounded = correction >= mismatch.cap if mismatch.kind.endswith("tis") else correction == 0
            found["mismatch/correction_mean"] = float(correction.mean())
            found["mismatch/correction_max"] = float(correction.max())
            found["mismatch/correction_bounded_fraction"] = float(bounded.double().mean())
        if config.token_filter.kind != "all":
            found["filter/selected_fraction"] = float(selected.mean())
            found["filter/selected_entropy"] = _mean(entropy, selected.bool())
            found["filter/selected_prob"] = _mean(prob, selected.bool())
        return found | _gradient_shares(slope, prob)


def _gradient_shares(slope: Tensor, prob: Tensor) -> dict[str, float]:
    """Share of the gradient norm by bucket of p.

    |d term / d logits| of a softmax token lies between |slope| (1 - p) and sqrt(2) times that (the factor of the
    TR-GRPO paper's Theorem 3.1); the lower bound is what is shared out.
    """
    pull = slope.abs() * (1 - prob)
    total = float(pull.sum())
    found = {}
    for low, high in itertools.pairwise(PROBABILITY_EDGES):
        inside = (prob >= low) & ((prob < high) | (high == 1.0))
        found[f"objective/grad_share_p{low:g}_{high:g}"] = float(pull[inside].sum()) / total if total > 0 else 0.0
    return found


def _share(chosen: Tensor, among: Tensor) -> float:
    count = int(among.sum())
    return float(chosen.sum()) / count if count else 0.0


def _mean(values: Tensor, among: Tensor) -> float:
    return float(values[among].mean()) if bool(among.any()) else 0.0

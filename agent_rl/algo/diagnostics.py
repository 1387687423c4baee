"""What the objective did to a batch: a mechanism is only believed when it is seen."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent_rl.algo.records import LossOutput, TokenBatch
from agent_rl.config.schema import AlgoConfig

PROBABILITY_EDGES = (0.0, 0.1, 0.3, 0.7, 0.9, 1.0)


@dataclass(slots=True)
class ObjectiveDiagnostics:
    """Collects the trained tokens of every micro-batch of a step; ``metrics`` gives one flat dict."""

    config: AlgoConfig
    _tokens: list[tuple[Tensor, ...]] = field(default_factory=list)

    def add(self, batch: TokenBatch, out: LossOutput, entropy: Tensor) -> None:
        """``entropy`` [N] in nats, at the sampling temperature."""
        mask = batch.mask
        columns = (batch.logp, out.weight, out.ratio, batch.advantage, out.coefficient, out.kl_term, entropy)
        self._tokens.append(tuple(column.detach()[mask].double().cpu() for column in columns))

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens. Empty where none was trained."""
        if not self._tokens or not sum(len(parts[0]) for parts in self._tokens):
            return {}
        logp, weight, ratio, advantage, coefficient, kl, entropy = (
            torch.cat(parts) for parts in zip(*self._tokens, strict=True)
        )
        config, prob = self.config.token_weight, logp.exp()
        positive, negative = advantage > 0, advantage < 0
        dead = coefficient == 0
        found = {
            "weight/mean": float(weight.mean()),
            "weight/min": float(weight.min()),
            "weight/max": float(weight.max()),
            "objective/ratio_mean": float(ratio.mean()),
            "objective/ratio_max": float(ratio.max()),
            "objective/kl": float(kl.mean()),
            "objective/entropy": float(entropy.mean()),
            "objective/clip_fraction_pos": _share(dead & positive, positive),
            "objective/clip_fraction_neg": _share(dead & negative, negative),
            "objective/dead_positive_fraction": _share(dead & positive, positive),
            "objective/prob_mean": float(prob.mean()),
        }
        if config.kind == "probability":
            found["weight/at_lower"] = float((weight <= config.lower).double().mean())
            found["weight/at_upper"] = float((weight >= config.upper).double().mean())
        # |d loss / d logits| of a softmax token is at least |coefficient| (1 - p): its share by bucket of p.
        pull = coefficient.abs() * (1 - prob)
        total = float(pull.sum())
        for low, high in itertools.pairwise(PROBABILITY_EDGES):
            inside = (prob >= low) & ((prob < high) | (high == 1.0))
            share = float(pull[inside].sum()) / total if total > 0 else 0.0
            found[f"objective/grad_share_p{low:g}_{high:g}"] = share
        return found


def _share(chosen: Tensor, among: Tensor) -> float:
    count = int(among.sum())
    return float(chosen.sum()) / count if count else 0.0

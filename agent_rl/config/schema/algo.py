"""The objective: each part of the composition, and the combinations that mean something."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.config.schema.record import (
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Record,
)


class TokenWeightConfig(Record):
    """Weight of a token in the policy loss (paper Eq. 11); constant for differentiation."""

    kind: Literal["none", "probability"] = "none"
    form: Literal["multiply", "divide", "raw_logit"] = "multiply"
    alpha: float = 2.0
    mu: float = 0.25
    tau: PositiveFloat = 9.0
    lower: float = 1.0
    upper: float = 1.4
    prob: Literal["current", "old"] = "current"

    @model_validator(mode="after")
    def _ordered(self) -> TokenWeightConfig:
        if self.lower > self.upper:
            raise ValueError(f"lower={self.lower} is above upper={self.upper}")
        return self


class KLConfig(Record):
    beta: NonNegativeFloat = 0.001
    estimator: Literal["k1", "k2", "k3"] = "k3"
    weighting: Literal["none", "outside", "inside"] = "none"


class AlgoConfig(Record):
    name: str = "grpo"
    advantage: Literal["group_norm", "group_mean"] = "group_norm"
    std_ddof: Literal[0, 1] = 1
    token_weight: TokenWeightConfig = TokenWeightConfig()
    clip_on: Literal["ratio", "weighted_ratio"] = "ratio"
    clip_low: PositiveFloat = 0.20
    clip_high: PositiveFloat = 0.24
    dual_clip: float | None = Field(None, gt=1)
    log_ratio_clamp: PositiveFloat | None = 20.0
    kl: KLConfig = KLConfig()
    aggregate: Literal["token_mean", "group_token_mean", "sequence_mean", "constant_length"] = "token_mean"
    constant_length_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _has_meaning(self) -> AlgoConfig:
        faults = []
        if self.aggregate == "constant_length" and self.constant_length_tokens is None:
            faults.append("aggregate=constant_length needs constant_length_tokens")
        if self.kl.weighting != "none" and self.token_weight.kind == "none":
            faults.append("kl.weighting needs a token_weight; with token_weight.kind=none use kl.weighting=none")
        if self.kl.weighting == "inside" and self.kl.estimator != "k3":
            faults.append("kl.weighting=inside is Eq. 10, defined for kl.estimator=k3 only")
        if self.clip_on == "weighted_ratio" and self.token_weight.kind == "none":
            faults.append("clip_on=weighted_ratio needs a token_weight; use clip_on=ratio")
        if faults:
            raise ValueError("; ".join(faults))
        return self

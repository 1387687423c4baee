"""The objective: each part of the composition, and the combinations that mean something."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.config.schema.record import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Record


def _idle(record: Record, reason: str, *names: str) -> list[str]:
    """A fault for each of ``names`` that was moved from its default although ``reason`` makes it do nothing."""
    return [
        f"{name}={getattr(record, name)!r} has no effect with {reason}"
        for name in names
        if getattr(record, name) != type(record).model_fields[name].default
    ]


def _refuse(faults: list[str]) -> None:
    if faults:
        raise ValueError("; ".join(faults))


class TokenWeightConfig(Record):
    """Weight w of a token in the policy loss; constant for differentiation."""

    kind: Literal["none", "probability", "reverse", "random", "linear"] = Field(
        "none",
        description="probability: Eq. 11; reverse: 2 - w; random: U[0.5, 1.5], once per rollout token; "
        "linear: a p + 1 - a (A-R)",
    )
    form: Literal["multiply", "divide", "raw_logit"] = Field(
        "multiply", description="argument of the sigmoid: p * tau, p / tau (to the letter), or logit / tau"
    )
    alpha: float = 2.0
    mu: float = 0.25
    tau: PositiveFloat = 9.0
    lower: float = 1.0
    upper: float = 1.4
    linear_a: Fraction = Field(0.2, description="a of kind=linear")
    prob: Literal["current", "old"] = Field("current", description="whose probability p is, always detached")

    @property
    def sigmoidal(self) -> bool:
        return self.kind in ("probability", "reverse")

    @model_validator(mode="after")
    def _has_meaning(self) -> TokenWeightConfig:
        faults = [] if self.lower <= self.upper else [f"lower={self.lower} is above upper={self.upper}"]
        if not self.sigmoidal:
            faults += _idle(self, f"kind={self.kind}", "form", "alpha", "mu", "tau", "lower", "upper")
        if self.kind != "linear":
            faults += _idle(self, f"kind={self.kind}", "linear_a")
        if self.kind in ("none", "random"):
            faults += _idle(self, f"kind={self.kind}", "prob")
        elif self.sigmoidal and self.form == "raw_logit":
            faults += _idle(self, "form=raw_logit", "prob")
        _refuse(faults)
        return self


class KLConfig(Record):
    """Divergence from the policy as RL began. beta = 0 loads no reference model."""

    beta: NonNegativeFloat = 0.001
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="k3: rho - log rho - 1; k2: (log rho)^2 / 2; k1: -log rho, whose gradient is 0 on average"
    )
    weighting: Literal["none", "outside", "inside"] = Field(
        "none", description="outside: w k (Eq. 12); inside: w rho - log(w rho) - 1 (Eq. 10)"
    )


class GroupFilterConfig(Record):
    """What happens to groups whose rewards are all equal (their advantages are 0)."""

    kind: Literal["keep", "drop_uniform"] = Field("keep", description="drop_uniform: dynamic sampling (DAPO)")
    max_refills: NonNegativeInt = Field(
        3, description="drop_uniform: times that dropped groups are replaced by new questions within a step"
    )

    @model_validator(mode="after")
    def _has_meaning(self) -> GroupFilterConfig:
        _refuse(_idle(self, "kind=keep", "max_refills") if self.kind == "keep" else [])
        return self


class OverlongConfig(Record):
    """Soft overlong punishment (DAPO): 0 up to L - buffer, then linear to -penalty at L.

    L is ``rollout.max_response_tokens``; the length counts what that limit counts.
    """

    buffer_fraction: Fraction = Field(0.2, gt=0, description="buffer as a share of rollout.max_response_tokens")
    penalty: PositiveFloat = 1.0


class MismatchConfig(Record):
    """Correction for sampling with other numerics than training: importance ratio pi_old / pi_rollout."""

    kind: Literal["none", "token_tis", "sequence_tis", "token_mis", "sequence_mis"] = Field(
        "none", description="tis: the ratio, at most cap; mis: the ratio, 0 above cap; of a token or of its sequence"
    )
    cap: float = Field(2.0, gt=1)

    @model_validator(mode="after")
    def _has_meaning(self) -> MismatchConfig:
        _refuse(_idle(self, "kind=none", "cap") if self.kind == "none" else [])
        return self


class TokenFilterConfig(Record):
    """Which trained tokens an update uses; the loss is still divided by the count of all of them."""

    kind: Literal["all", "high_entropy", "low_then_high"] = Field(
        "all",
        description="high_entropy: the top_fraction of the batch; low_then_high: two updates, p_old < eta first",
    )
    top_fraction: float = Field(0.2, gt=0, le=1)
    eta: float = Field(0.5, gt=0, lt=1)

    @model_validator(mode="after")
    def _has_meaning(self) -> TokenFilterConfig:
        faults = [] if self.kind == "high_entropy" else _idle(self, f"kind={self.kind}", "top_fraction")
        _refuse(faults + ([] if self.kind == "low_then_high" else _idle(self, f"kind={self.kind}", "eta")))
        return self


class AlgoConfig(Record):
    """advantage x token weight x surrogate x KL x aggregate x group filter x mismatch x token filter."""

    name: str = "grpo"
    advantage: Literal["group_norm", "group_mean", "rloo", "reinforce_pp"] = Field(
        "group_norm",
        description="group_norm: (R - mean) / std of the group; group_mean: R - mean; rloo: against the others' mean; "
        "reinforce_pp: whitened over the step",
    )
    std_ddof: Literal[0, 1] = 1
    token_weight: TokenWeightConfig = TokenWeightConfig()
    surrogate: Literal["clip", "gspo", "cispo", "reinforce"] = Field(
        "clip",
        description="clip: PPO's; gspo: the sequence's ratio; cispo: clipped ratio times log-probability; "
        "reinforce: no ratio",
    )
    clip_on: Literal["ratio", "weighted_ratio"] = Field(
        "ratio", description="ratio: w outside the clip; weighted_ratio: w r is clipped (Eq. 9 to the letter)"
    )
    clip_low: PositiveFloat | None = Field(0.20, description="null: no lower bound (surrogate=cispo only)")
    clip_high: PositiveFloat = 0.24
    dual_clip: float | None = Field(None, gt=1, description="for A < 0 the term is at most -dual_clip A")
    log_ratio_clamp: PositiveFloat | None = Field(
        20.0, description="log-ratios are held to +- this, beyond which they have no gradient; null: never"
    )
    kl: KLConfig = KLConfig()
    aggregate: Literal["token_mean", "group_token_mean", "sequence_mean", "constant_length"] = "token_mean"
    constant_length_tokens: PositiveInt | None = Field(
        None, description="aggregate=constant_length divides by this; null: rollout.max_response_tokens"
    )
    group_filter: GroupFilterConfig = GroupFilterConfig()
    overlong: OverlongConfig | None = Field(None, description="reward shaping of long responses; null: none")
    mismatch: MismatchConfig = MismatchConfig()
    token_filter: TokenFilterConfig = TokenFilterConfig()

    @model_validator(mode="after")
    def _has_meaning(self) -> AlgoConfig:
        weight, surrogate = self.token_weight, self.surrogate
        faults = []
        if self.aggregate != "constant_length":
            faults += _idle(self, f"aggregate={self.aggregate}", "constant_length_tokens")
        if self.advantage in ("group_mean", "rloo"):
            faults += _idle(self, f"advantage={self.advantage}", "std_ddof")
        if surrogate != "clip":
            faults += _idle(self, f"surrogate={surrogate}", "clip_on", "dual_clip")
        if surrogate == "reinforce":
            faults += _idle(self, "surrogate=reinforce", "clip_low", "clip_high")
        elif surrogate != "cispo" and self.clip_low is None:
            faults.append(f"clip_low=null: surrogate={surrogate} needs a lower bound")
        if surrogate == "reinforce" and self.token_filter.kind == "low_then_high":
            faults.append(
                "token_filter.kind=low_then_high updates twice on one rollout, and surrogate=reinforce has no ratio "
                "to correct for that; use surrogate=clip"
            )
        if self.kl.weighting != "none" and weight.kind == "none":
            faults.append("kl.weighting needs a token_weight; with token_weight.kind=none use kl.weighting=none")
        if self.kl.weighting == "inside":
            faults += self._inside_faults()
        if self.clip_on == "weighted_ratio" and weight.kind == "none":
            faults.append("clip_on=weighted_ratio needs a token_weight; use clip_on=ratio")
        _refuse(faults)
        return self

    def _inside_faults(self) -> list[str]:
        """Eq. 10 takes the logarithm of w."""
        weight, faults = self.token_weight, []
        if self.kl.estimator != "k3":
            faults.append("kl.weighting=inside is Eq. 10, defined for kl.estimator=k3 only")
        if weight.kind == "probability" and weight.lower <= 0:
            faults.append(f"kl.weighting=inside needs weights above 0, but token_weight.lower={weight.lower:g}")
        if weight.kind == "reverse" and weight.upper >= 2:
            faults.append(f"kl.weighting=inside needs 2 - w above 0, but token_weight.upper={weight.upper:g}")
        return faults

"""When a run is said to collapse."""

from __future__ import annotations

from pydantic import Field

from agent_rl.config.schema.record import NonNegativeFloat, PositiveFloat, PositiveInt, Record


class AlarmConfig(Record):
    """Collapse alarm: a rule that holds for ``patience_steps`` steps warns and saves a checkpoint that is kept.

    The baseline of a rule is the median of the first ``baseline_steps`` RL steps that have its metric. A step in which
    every group has one reward is compared with the best step before.
    """

    enabled: bool = True
    stop: bool = Field(False, description="end the run at the first alarm (a checkpoint is written)")
    baseline_steps: PositiveInt = 4
    patience_steps: PositiveInt = 3
    entropy_low_fraction: NonNegativeFloat = Field(
        0.02, description="entropy below this share of its baseline: the policy no longer explores; 0: never"
    )
    entropy_high_factor: PositiveFloat = Field(
        3.0, gt=1, description="entropy above this multiple of its baseline: the policy falls apart"
    )
    correct_logp_drop_nats: PositiveFloat = Field(
        0.5, description="log-probability per token of correct responses this far below its baseline"
    )
    grad_norm_factor: PositiveFloat = Field(
        10.0, gt=1, description="gradient norm above this multiple of its median over the steps before"
    )
    invalid_action_rise: PositiveFloat = Field(
        0.3, description="invalid actions per trajectory this far above their baseline"
    )

"""Rollouts: grammar, limits, groups."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.config.schema.record import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Record,
)


class RolloutConfig(Record):
    grammar: Literal["auto", "search_r1", "plain", "hermes"] = Field(
        "auto", description="auto: the one of the task's prompts; hermes: the model's own function calling"
    )
    max_calls_per_turn: PositiveInt = Field(1, description="calls of one turn that are made (hermes)")
    temperature: NonNegativeFloat = 1.0
    max_turns: PositiveInt = Field(4, description="policy turns, the answering one included")
    max_turn_tokens: PositiveInt = 256
    max_response_tokens: PositiveInt = Field(2048, description="policy and tool tokens together")
    max_observation_tokens: PositiveInt = 500
    max_prompt_tokens: PositiveInt = 1024
    rollout_timeout_s: PositiveFloat = 300.0
    correct_invalid_action: bool = Field(False, description="answer a turn without call or answer with a hint")
    group_size: PositiveInt = 8
    min_group: PositiveInt = Field(2, description="scored members a group needs to be trained on")
    retries: NonNegativeInt = Field(1, description="times a trajectory broken by infrastructure is run again")
    max_failed_fraction: Fraction = Field(0.5, description="a step with more broken trajectories ends the run")
    max_in_flight: PositiveInt = 128

"""Limits of a rollout, in one frozen record.

Order of the checks: before a turn the prompt (`max_prompt_tokens`, once), then the number of turns
(`max_turns`), then the tokens left (`max_response_tokens`); the turn itself is cut at the smaller of
`max_turn_tokens` and the tokens left; an observation is cut at the smaller of `max_observation_tokens` and the
tokens left. `rollout_timeout_s` runs over all of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    max_turns: int = 4
    max_turn_tokens: int = 256
    max_response_tokens: int = 2048
    max_observation_tokens: int = 500
    max_prompt_tokens: int = 1024
    rollout_timeout_s: float = 300.0
    tool_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"limits.{name}={getattr(self, name)} must be above 0")

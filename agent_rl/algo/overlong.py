"""Soft overlong punishment (DAPO, arXiv 2503.14476, Eq. 13)."""

from __future__ import annotations

from agent_rl.config.schema import OverlongConfig


def overlong_penalty(config: OverlongConfig, response_tokens: int, limit_tokens: int) -> float:
    """What is added to the reward, in [-penalty, 0]: 0 up to L - buffer tokens, linear to -penalty at L."""
    buffer_tokens = config.buffer_fraction * limit_tokens
    excess = response_tokens - (limit_tokens - buffer_tokens)
    return -config.penalty * min(max(excess / buffer_tokens, 0.0), 1.0)

"""What the embedded sampler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SamplerStats:
    """Counts since the last ``take_stats``: tokens, forward passes, and prefill saved by caches or lost with them.

    ``kv_evictions``: caches of trajectories that the budget had no room for; ``reprefilled_tokens``: tokens of theirs
    that were prefilled again, which ``prefilled_tokens`` counts too.
    """

    decoded_tokens: int = 0
    decode_passes: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    shared_prompt_tokens: int = 0
    kv_evictions: int = 0
    reprefilled_tokens: int = 0

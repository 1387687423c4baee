"""What a sampler is: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """``temperature`` 0 is greedy. ``seed`` makes the turn's draws its own, whoever else is in the batch."""

    temperature: float = 1.0
    max_tokens: int = 256
    stop_strings: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature} must be 0 (greedy) or above")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 1")


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One sampled turn.

    ``ids`` and ``logprobs`` have one entry a token. ``finish``: ``stop`` (a stop string completed, then
    ``stop_string`` says which, or the model's own end token, then it is None), ``length`` (``max_tokens``
    reached) or ``abort`` (infrastructure; the ids are partial). ``version`` is the policy version.
    ``logprobs`` are natural logs of softmax(logits / temperature), at temperature 1 when greedy. ``queued_s``: seconds
    until the turn was admitted, where the sampler knows it.
    """

    ids: list[int]
    logprobs: list[float]
    finish: Finish
    stop_string: str | None
    version: int
    queued_s: float = 0.0


@runtime_checkable
class Sampler(Protocol):
    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        """Sample one turn after ``ids``. Raises SamplerError when the engine behind it died."""
        ...

    async def end_session(self, session: str) -> None:
        """Forget what is kept for the trajectory ``session`` (its KV cache)."""
        ...

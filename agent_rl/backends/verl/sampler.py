"""The engine's sampler over verl's server manager: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from typing import Any

from agent_rl.errors import SamplerError
from agent_rl.rollout.codec import TokenCodec
from agent_rl.samplers.base import Finish, SampledTurn, SamplingParams


class VerlSampler:
    """One trajectory, or many, over ``servers`` (verl's LLMServerClient or what has its ``generate``).

    The session is the request id: verl sends all turns of a trajectory to one replica, whose prefix cache holds them.
    ``versions`` holds the policy versions that sampled, as verl counts them.
    """

    def __init__(self, servers: Any, codec: TokenCodec) -> None:
        self._servers, self._codec = servers, codec
        self.versions: list[int] = []

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        """Raises SamplerError where the engine aborted or gave no log-probabilities."""
        found = await self._servers.generate(
            request_id=session,
            prompt_ids=ids,
            sampling_params={
                "temperature": params.temperature,
                "max_tokens": params.max_tokens,
                "stop": list(params.stop_strings),
                "include_stop_str_in_output": True,
                "stop_token_ids": sorted(self._codec.eos_ids),
                **{"top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True},
                "seed": params.seed & 0x7FFFFFFF,  # engines take 32 bits
            },
        )
        version = found.extra_fields.get("max_global_steps")
        version = -1 if version is None else int(version)
        written = [int(token) for token in found.token_ids]
        if found.stop_reason in ("aborted", "abort"):
            return SampledTurn(written, [0.0] * len(written), "abort", None, version)
        if found.log_probs is None or len(found.log_probs) != len(written):
            raise SamplerError("the rollout engine gave no log-probability for each token it sampled")
        if version >= 0:
            self.versions.append(version)
        finish, stop = self._ended_by(written, params)
        # Engines compute in half precision: a certain token may come out a hair above 0.
        return SampledTurn(written, [min(float(p), 0.0) for p in found.log_probs], finish, stop, version)

    async def end_session(self, session: str) -> None:
        """verl keeps no state for a session."""

    def _ended_by(self, ids: list[int], params: SamplingParams) -> tuple[Finish, str | None]:
        """verl passes on neither the engine's finish reason nor its stop string: both follow from the ids."""
        text = self._codec.decode(ids)
        ends = {stop: text.rfind(stop) + len(stop) for stop in params.stop_strings if stop in text}
        if ends:
            return "stop", max(ends, key=lambda stop: ends[stop])
        if ids and ids[-1] in self._codec.eos_ids:
            return "stop", None
        return "length", None

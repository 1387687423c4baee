"""Sampler over a server that takes token ids and gives token ids back (vLLM, SGLang)."""

from __future__ import annotations

from agent_rl.errors import SamplerError, UsageError
from agent_rl.rollout.codec import TokenCodec
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.samplers.completions import OpenAICompletions, SGLangGenerate, TokenAPI
from agent_rl.samplers.http import ModelServer


class RemoteSampler:
    """``codec`` must be that of the server's model: it is given ids, and asked for ids."""

    def __init__(self, server: ModelServer, codec: TokenCodec, model: str) -> None:
        self._server, self._codec, self._model = server, codec, model
        self._api: TokenAPI = SGLangGenerate() if server.config.api == "sglang" else OpenAICompletions()

    async def check(self) -> None:
        """Ask for one token. Raises UsageError where the server does not answer as it must."""
        try:
            await self.sample(self._codec.encode("a"), SamplingParams(temperature=0.0, max_tokens=1), session="")
        except SamplerError as error:
            raise UsageError(f"sampler.url={self._server.config.url} cannot be sampled from: {error}") from error

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        body = self._api.body(self._model, ids, params, sorted(self._codec.eos_ids))
        answer = await self._server.post(self._api.path, body)
        try:
            found = self._api.read(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise SamplerError(f"{self._server.url}{self._api.path}: {error}") from error
        if len(found.ids) != len(found.logprobs) or found.finish not in ("stop", "length"):
            raise SamplerError(
                f"{self._server.url}{self._api.path}: {len(found.ids)} ids with {len(found.logprobs)} "
                f"log-probabilities, finished by {found.finish!r}"
            )
        logprobs = [min(float(value), 0.0) for value in found.logprobs]  # half precision: a hair above 0
        return SampledTurn(found.ids, logprobs, found.finish, found.stop_string, version=0)

    async def end_session(self, session: str) -> None:
        """Nothing is kept for a session: the server's prefix cache does that."""

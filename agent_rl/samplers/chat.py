"""Evaluation of a model behind a plain chat endpoint, which knows messages and not tokens.

What the model writes and what the tools answer alternate as messages of ``assistant`` and ``user``. Token ids, by a
tokenizer of our side, only serve to keep the books: no log-probability is known, so nothing can be trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_rl.errors import SamplerError, UsageError
from agent_rl.rollout.codec import HFCodec
from agent_rl.samplers.base import Finish, SampledTurn, SamplingParams
from agent_rl.samplers.http import ModelServer

if TYPE_CHECKING:
    from tasks.base import Message


class ChatCodec(HFCodec):
    """A codec that remembers which messages it made each prompt of."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._rendered: dict[tuple[int, ...], list[Message]] = {}

    def render(self, messages: list[Message]) -> list[int]:
        if messages[-1]["role"] == "assistant":
            raise ValueError("a chat endpoint cannot go on with a begun answer; choose another task.prompt")
        ids = super().render(messages)
        self._rendered[tuple(ids)] = messages
        return ids

    def messages_of(self, ids: list[int]) -> list[Message]:
        return self._rendered[tuple(ids)]


@dataclass(slots=True)
class _Session:
    messages: list[dict[str, str]]
    known: int  # tokens that ``messages`` stand for


class ChatSampler:
    """``/v1/chat/completions`` as a Sampler; the log-probabilities it gives are all 0 and mean nothing."""

    path = "/v1/chat/completions"

    def __init__(self, server: ModelServer, codec: ChatCodec, model: str) -> None:
        self._server, self._codec, self._model = server, codec, model
        self._sessions: dict[str, _Session] = {}

    async def check(self) -> None:
        """Ask for one token. Raises UsageError where the server does not answer as it must."""
        try:
            await self._ask([{"role": "user", "content": "Hi"}], SamplingParams(temperature=0.0, max_tokens=1))
        except SamplerError as error:
            raise UsageError(f"sampler.url={self._server.config.url} cannot be asked: {error}") from error

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        kept = self._sessions.get(session)
        if kept is None:
            roles = {"raw": "user"}
            messages = [
                {"role": roles.get(message["role"], message["role"]), "content": message["content"]}
                for message in self._codec.messages_of(ids)
            ]
            kept = self._sessions[session] = _Session(messages, len(ids))
        else:
            # Without an observation the model stopped inside its own thoughts: it is asked to go on.
            observed = self._codec.decode(ids[kept.known :]) or "Go on."
            kept.messages.append({"role": "user", "content": observed})
        text, finish = await self._ask(kept.messages, params)
        text, stop = _up_to_stop(text, params.stop_strings, finish)
        kept.messages.append({"role": "assistant", "content": text})
        written = self._codec.encode(text)
        kept.known = len(ids) + len(written)
        return SampledTurn(written, [0.0] * len(written), "stop" if stop else finish, stop, version=0)

    async def end_session(self, session: str) -> None:
        self._sessions.pop(session, None)

    async def _ask(self, messages: list[dict[str, str]], params: SamplingParams) -> tuple[str, Finish]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed & 0x7FFFFFFF,
        }
        if params.stop_strings:
            body["stop"] = list(params.stop_strings)
        answer = await self._server.post(self.path, body)
        try:
            (choice,) = answer["choices"]
            text, finish = choice["message"]["content"] or "", choice["finish_reason"]
        except (KeyError, TypeError, ValueError) as error:
            raise SamplerError(f"{self._server.url}{self.path}: no answer of a chat endpoint ({error!r})") from error
        if finish not in ("stop", "length"):
            raise SamplerError(f"{self._server.url}{self.path}: the answer was finished by {finish!r}")
        return str(text), finish


def _up_to_stop(text: str, stops: tuple[str, ...], finish: Finish) -> tuple[str, str | None]:
    """The text through the first stop string, and that string; None where the model ended by itself.

    Chat endpoints cut the stop string off and do not say which it was: it is the closing tag that is wanting.
    """
    found = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
    if found:
        end, stop = min(found)
        return text[:end], stop
    opened = [(text.rfind(stop.replace("</", "<", 1)), stop) for stop in stops if stop.startswith("</")]
    place, stop = max(opened, default=(-1, ""))
    if finish == "stop" and place >= 0:
        return text + stop, stop
    return text, None

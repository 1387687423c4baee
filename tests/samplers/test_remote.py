"""Samplers over HTTP: what is sent, what is read, what is tried again; real servers with scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from agent_rl.config.schema import RemoteSamplerConfig
from agent_rl.errors import SamplerError, UsageError
from agent_rl.rollout.codec import HFCodec
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.samplers.chat import ChatCodec, ChatSampler
from agent_rl.samplers.http import ModelServer
from agent_rl.samplers.remote import RemoteSampler
from agent_rl.testing import ToyCodec
from tools.testing import RunningServer

Answer = Callable[[str, dict[str, Any]], Any]
PARAMS = SamplingParams(temperature=0.8, max_tokens=9, stop_strings=("</search>", "</answer>"), seed=2**40 + 5)


class Served:
    """A server that answers each POST with ``answer(path, body)``: a JSON value, or a Response."""

    def __init__(self) -> None:
        self.answer: Answer = lambda path, body: {}
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.wait_s = 0.0
        self.app = FastAPI()
        self.app.get("/v1/models")(lambda: {"data": [{"id": "served-model"}]})
        for path in ("/v1/completions", "/generate", "/v1/chat/completions"):
            self.app.post(path)(self._take)

    async def _take(self, request: Request) -> Any:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        await asyncio.sleep(self.wait_s)
        return self.answer(request.url.path, body)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Served, str]]:
    served = Served()
    with RunningServer(served.app) as server:
        yield served, server.url


@pytest.fixture
def served(running: tuple[Served, str]) -> Served:
    running[0].bodies.clear()
    running[0].keys.clear()
    running[0].wait_s = 0.0
    return running[0]


@pytest.fixture
def ask(running: tuple[Served, str]) -> Callable[..., Any]:
    """Runs ``work(server)`` over a ModelServer with these settings."""

    def run(work: Callable[[ModelServer], Any], **settings: Any) -> Any:
        async def inside() -> Any:
            server = ModelServer(RemoteSamplerConfig(**({"url": running[1], "retries": 0} | settings)))
            try:
                return await work(server)
            finally:
                await server.aclose()

        return asyncio.run(inside())

    return run


def sample(ids: list[int]) -> Callable[[ModelServer], Any]:
    return lambda server: RemoteSampler(server, ToyCodec(), "served-model").sample(ids, PARAMS, session="s")


def completion(**changes: Any) -> dict[str, Any]:
    choice = {
        "token_ids": [5, 6],
        "logprobs": {"token_logprobs": [-0.5, 1e-6]},
        "finish_reason": "stop",
        "stop_reason": "</search>",
    }
    return {"choices": [choice | changes]}


def triples(**changes: Any) -> dict[str, Any]:
    about = {
        "output_token_logprobs": [[-0.5, 5, "a"], [1e-6, 6, None]],
        "finish_reason": {"type": "stop", "matched": "</search>"},
    }
    return {"text": "x", "meta_info": about | changes}


def test_completions_take_ids_and_give_ids(served: Served, ask: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    served.answer = lambda path, body: completion()
    turn = ask(sample([1, 2]), key_env="MY_KEY", extra_body={"top_p": 0.9})
    assert turn == SampledTurn([5, 6], [-0.5, 0.0], "stop", "</search>", 0)
    (body,) = served.bodies
    assert body["prompt"] == [1, 2]
    assert (body["model"], body["max_tokens"], body["temperature"], body["top_p"]) == ("served-model", 9, 0.8, 0.9)
    assert (body["stop"], body["include_stop_str_in_output"]) == (["</search>", "</answer>"], True)
    assert body["return_token_ids"] is True
    assert 0 <= body["seed"] < 2**31
    assert body["stop_token_ids"] == sorted(ToyCodec().eos_ids)
    assert served.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("answer", "finish", "stop"),
    [
        (completion(finish_reason="length", stop_reason=None), "length", None),
        (completion(stop_reason=None), "stop", None),
        (completion(stop_reason=96), "stop", None),  # an end token, by its id
    ],
)
def test_how_a_completion_ended(served: Served, ask: Callable[..., Any], answer: Any, finish: str, stop: Any) -> None:
    served.answer = lambda path, body: answer
    turn = ask(sample([1]))
    assert (turn.finish, turn.stop_string) == (finish, stop)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"type": "stop", "matched": "</search>"}, ("stop", "</search>")),
        ({"type": "stop", "matched": 96}, ("stop", None)),
        ({"type": "length", "length": 9}, ("length", None)),
    ],
)
def test_sglang_gives_triples(served: Served, ask: Callable[..., Any], finish: Any, expected: Any) -> None:
    served.answer = lambda path, body: triples(finish_reason=finish)
    turn = ask(sample([1, 2]), api="sglang")
    assert (turn.ids, turn.logprobs) == ([5, 6], [-0.5, 0.0])
    assert (turn.finish, turn.stop_string) == expected
    (body,) = served.bodies
    assert body["input_ids"] == [1, 2]
    assert body["sampling_params"]["no_stop_trim"] is True
    assert body["return_logprob"] is True


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (completion(token_ids=None), "returns no token ids"),
        (completion(logprobs=None), "returns no log-probabilities"),
        (completion(token_ids=[5]), "1 ids with 2 log-probabilities"),
        (completion(finish_reason="abort"), "finished by 'abort'"),
        ({"choices": []}, "completions"),
        ({}, "choices"),
        ([], "no JSON object"),
    ],
)
def test_answer_that_is_none_is_said(served: Served, ask: Callable[..., Any], answer: Any, message: str) -> None:
    served.answer = lambda path, body: answer
    with pytest.raises(SamplerError, match=message):
        ask(sample([1]))


def test_what_may_pass_is_tried_again(served: Served, ask: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr("agent_rl.samplers.http.FIRST_BACKOFF_S", 0.001)
    codes = [503, 429, 200]

    def answer(path: str, body: Any) -> Any:
        code = codes.pop(0)
        return JSONResponse(completion(), status_code=code, headers={"Retry-After": "0"})

    served.answer = answer
    assert ask(sample([1]), retries=2).ids == [5, 6]
    codes[:] = [500, 500]
    with pytest.raises(SamplerError, match="answered 500"):
        ask(sample([1]), retries=1)
    codes[:] = [400]
    with pytest.raises(SamplerError, match="answered 400"):
        ask(sample([1]), retries=5)
    assert len(served.bodies) == 3 + 2 + 1, "what the server refuses is not sent again"


def test_no_answer_in_time_and_no_server(served: Served, ask: Callable[..., Any]) -> None:
    served.wait_s = 5.0
    with pytest.raises(SamplerError, match=r"sampler.timeout_s=0.1"):
        ask(sample([1]), timeout_s=0.1)
    with pytest.raises(SamplerError, match="ConnectError"):
        ask(sample([1]), url="http://127.0.0.1:9")
    with pytest.raises(UsageError, match=r"sampler.url=http://127.0.0.1:9: no model is listed"):
        ask(lambda server: server.model_name(), url="http://127.0.0.1:9")
    with pytest.raises(UsageError, match="cannot be sampled from"):
        ask(lambda server: RemoteSampler(server, ToyCodec(), "m").check(), url="http://127.0.0.1:9")


def test_model_of_the_server(ask: Callable[..., Any], running: tuple[Served, str]) -> None:
    assert ask(lambda server: server.model_name()) == "served-model"
    assert ask(lambda server: server.model_name(), model="mine") == "mine"
    assert ask(lambda server: server.model_name(), url=running[1] + "/v1/") == "served-model"


# ------------------------------------------------------------ chat endpoints


@pytest.fixture(scope="module")
def chat_codec() -> ChatCodec:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(alphabet | {"<eos>": len(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return ChatCodec(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"), "plain")


def said(text: str | None, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


def test_conversation_of_turns_and_observations(served: Served, ask: Callable[..., Any], chat_codec: ChatCodec) -> None:
    texts = ["I look. <search> who", "<answer> Ann"]
    served.answer = lambda path, body: said(texts.pop(0))
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]

    async def talk(server: ModelServer) -> list[SampledTurn]:
        sampler = ChatSampler(server, chat_codec, "m")
        ids = chat_codec.render(prompt)  # type: ignore[arg-type]
        first = await sampler.sample(ids, PARAMS, session="s")
        ids = ids + first.ids + chat_codec.encode("\n<information>\nAnn did.\n</information>\n")
        second = await sampler.sample(ids, PARAMS, session="s")
        await sampler.end_session("s")
        return [first, second]

    first, second = ask(talk, api="chat")
    assert chat_codec.decode(first.ids) == "I look. <search> who</search>"
    assert (first.finish, first.stop_string) == ("stop", "</search>")
    assert chat_codec.decode(second.ids) == "<answer> Ann</answer>"
    assert served.bodies[1]["messages"] == [
        *prompt,
        {"role": "assistant", "content": "I look. <search> who</search>"},
        {"role": "user", "content": "\n<information>\nAnn did.\n</information>\n"},
    ]
    assert served.bodies[0]["stop"] == ["</search>", "</answer>"]


@pytest.mark.parametrize(
    ("text", "finish", "expected"),
    [
        ("<search> a</search> and then <answer>b</answer>", "stop", ("<search> a</search>", "stop", "</search>")),
        ("no tag at all", "stop", ("no tag at all", "stop", None)),
        ("<search> cut", "length", ("<search> cut", "length", None)),
        ("<search> a <answer> b", "stop", ("<search> a <answer> b</answer>", "stop", "</answer>")),
        (None, "stop", ("", "stop", None)),
    ],
)
def test_where_a_chat_turn_ends(
    served: Served, ask: Callable[..., Any], chat_codec: ChatCodec, text: Any, finish: str, expected: Any
) -> None:
    served.answer = lambda path, body: said(text, finish)

    async def one(server: ModelServer) -> SampledTurn:
        ids = chat_codec.render([{"role": "raw", "content": "Who?"}])
        return await ChatSampler(server, chat_codec, "m").sample(ids, PARAMS, session="s")

    turn = ask(one, api="chat")
    assert (chat_codec.decode(turn.ids), turn.finish, turn.stop_string) == expected
    assert served.bodies[0]["messages"] == [{"role": "user", "content": "Who?"}]


def test_what_a_chat_endpoint_cannot_do(served: Served, ask: Callable[..., Any], chat_codec: ChatCodec) -> None:
    with pytest.raises(ValueError, match="cannot go on with a begun answer"):
        chat_codec.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>"}])
    served.answer = lambda path, body: said("x", "content_filter")
    with pytest.raises(UsageError, match="finished by 'content_filter'"):
        ask(lambda server: ChatSampler(server, chat_codec, "m").check(), api="chat")
    assert isinstance(chat_codec, HFCodec)

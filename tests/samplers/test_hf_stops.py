"""How a turn ends: stop strings against tokens of every cut, the end token, the limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_rl.rollout.codec import HFCodec
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.samplers.hf import HFSampler
from agent_rl.testing import ToyCodec, tiny_model

PROMPT = [0]


class Recital(torch.nn.Module):
    """A model that says ``script``, token by token, whatever it is asked."""

    def __init__(self, script: Sequence[int], vocabulary: int) -> None:
        super().__init__()
        self.config = tiny_model(8).config
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self._script, self._vocabulary = list(script), vocabulary

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any
    ) -> Any:
        logits = torch.zeros(1, len(logits_to_keep), self._vocabulary)
        for row, place in enumerate(position_ids[0, logits_to_keep].tolist()):
            logits[0, row, self._script[place]] = 50.0
        return type("Out", (), {"logits": logits})()


def said(script: Sequence[int], codec: Any, vocabulary: int, *stops: str, max_tokens: int = 99) -> SampledTurn:
    sampler = HFSampler(Recital([*script, *[0] * 100], vocabulary), codec, max_batch=2)
    try:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop_strings=stops)
        return asyncio.run(asyncio.wait_for(sampler.sample(PROMPT, params, session="s"), 30))
    finally:
        sampler.close()


def byte_codec() -> tuple[HFCodec, Tokenizer]:
    """A byte-level codec where every byte is a token: a character of several bytes is several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate([*alphabet, "<eos>"])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return HFCodec(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"), "plain"), backend


def test_turn_ends_with_the_token_that_completes_the_stop_string() -> None:
    codec = ToyCodec([*"abc<>/", "</s", "ear", "ch>", "ch>!!"])
    script = [0, 1, 6, 7, 8, 2, 2]
    turn = said(script, codec, codec.vocabulary, "</search>")
    assert (turn.ids, turn.finish, turn.stop_string) == (script[:5], "stop", "</search>")


def test_stop_string_that_ends_inside_a_token_keeps_the_whole_token() -> None:
    """NovaSky-AI/SkyRL#778."""
    codec = ToyCodec([*"abc<>/", "</s", "ear", "ch>", "ch>!!"])
    turn = said([0, 6, 7, 9, 2, 2], codec, codec.vocabulary, "</search>")
    assert turn.ids == [0, 6, 7, 9]
    assert codec.decode(turn.ids) == "a</search>!!"
    assert turn.stop_string == "</search>"


def test_stop_string_inside_one_token() -> None:
    codec = ToyCodec([*"ab", "x</s>y"])
    turn = said([0, 2, 1], codec, codec.vocabulary, "</s>")
    assert (turn.ids, turn.stop_string) == ([0, 2], "</s>")


def test_first_of_two_stop_strings_completed_by_one_token() -> None:
    codec = ToyCodec([*"ab", "</t></s>"])
    turn = said([0, 2, 1], codec, codec.vocabulary, "</s>", "</t>")
    assert turn.stop_string == "</t>"


def test_stop_string_of_the_prompt_does_not_stop_the_turn() -> None:
    codec = ToyCodec([*"ab", "</s>"])
    sampler = HFSampler(Recital([0, 1, 0, 2, 0], codec.vocabulary), codec)
    try:
        params = SamplingParams(temperature=0.0, stop_strings=("</s>",))
        turn = asyncio.run(sampler.sample([0, 2], params, session="s"))
    finally:
        sampler.close()
    assert turn.ids == [1, 0, 2]


@pytest.mark.parametrize("stop", ["</search>", "</поиск>", "終わり。", "🦊🦊🦊🦊", "é"])
def test_stop_strings_of_multi_byte_characters_one_byte_a_token(stop: str) -> None:
    codec, _ = byte_codec()
    script = codec.encode(f"naïve 狐 {stop}tail")
    turn = said(script, codec, 257, stop)
    assert codec.decode(turn.ids) == f"naïve 狐 {stop}"
    assert turn.stop_string == stop


@given(
    st.text("ab</>é狐", max_size=12),
    st.sampled_from(["</a>", "狐é狐", "ab", "</aa>"]),
    st.text("ab</>é狐", max_size=6),
)
@settings(max_examples=25, deadline=None)
def test_turn_is_the_shortest_one_that_holds_the_stop_string(before: str, stop: str, after: str) -> None:
    codec, _ = byte_codec()
    script = codec.encode(before + stop + after)
    if not script:
        return
    turn = said(script, codec, 257, stop)
    text = before + stop + after
    assert codec.decode(turn.ids) == text[: text.find(stop) + len(stop)]


def test_end_token_ends_the_turn_and_is_kept() -> None:
    codec = ToyCodec([*"ab"])
    turn = said([0, 1, codec.eos_id, 1], codec, codec.vocabulary, "b</s>")
    assert (turn.ids, turn.finish, turn.stop_string) == ([0, 1, codec.eos_id], "stop", None)


def test_limit_ends_the_turn() -> None:
    codec = ToyCodec([*"ab"])
    turn = said([0, 1, 0, 1], codec, codec.vocabulary, max_tokens=3)
    assert (turn.ids, turn.finish, turn.stop_string) == ([0, 1, 0], "length", None)


def test_stop_string_completed_by_the_last_token_allowed_is_a_stop() -> None:
    codec = ToyCodec([*"ab", "</s>"])
    turn = said([0, 2, 1], codec, codec.vocabulary, "</s>", max_tokens=2)
    assert (turn.finish, turn.stop_string) == ("stop", "</s>")


@pytest.mark.parametrize(("name", "value"), [("temperature", -1.0), ("temperature", float("nan")), ("max_tokens", 0)])
def test_parameters_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})

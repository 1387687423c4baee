"""What the sampler's tests share: one thread, a reference model, samplers that are closed again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from agent_rl.rollout.codec import TokenCodec
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.samplers.hf import HFSampler
from agent_rl.testing import ToyCodec, tiny_model

Ask = tuple[list[int], SamplingParams, str]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def codec() -> ToyCodec:
    return ToyCodec()


@pytest.fixture(scope="session")
def model(codec: ToyCodec) -> Any:
    return tiny_model(codec.vocabulary)


@pytest.fixture(scope="session")
def reference(codec: ToyCodec) -> Any:
    """The same weights under transformers' own eager attention: shares no code with the sampler."""
    found = tiny_model(codec.vocabulary)
    found.set_attn_implementation("eager")
    return found


@pytest.fixture
def opened(model: Any, codec: TokenCodec) -> Iterator[Callable[..., HFSampler]]:
    """Makes samplers; each is closed at the end of the test."""
    made: list[HFSampler] = []

    def open_(model_: Any = model, codec_: TokenCodec = codec, **settings: Any) -> HFSampler:
        made.append(HFSampler(model_, codec_, **settings))
        return made[-1]

    yield open_
    for sampler in made:
        sampler.close()


@pytest.fixture
def ask() -> Callable[[HFSampler, Sequence[Ask]], list[SampledTurn]]:
    """Asks all at once and waits for all."""

    def together(sampler: HFSampler, asks: Sequence[Ask]) -> list[SampledTurn]:
        async def run() -> list[SampledTurn]:
            return await asyncio.wait_for(
                asyncio.gather(*(sampler.sample(ids, params, session=session) for ids, params, session in asks)), 60
            )

        return asyncio.run(run())

    return together


@pytest.fixture
def full_logprobs(reference: Any) -> Callable[..., list[float]]:
    """Log-probabilities of ``sampled`` after ``prompt`` by one forward pass over all of it."""

    def compute(prompt: list[int], sampled: list[int], temperature: float = 1.0, model: Any = None) -> list[float]:
        ids = torch.tensor([prompt + sampled])
        with torch.no_grad():
            logits = (model or reference)(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits / temperature, dim=-1)
        return logprobs.gather(1, torch.tensor(sampled)[:, None])[:, 0].tolist()

    return compute


@pytest.fixture
def held() -> Callable[[Any], Any]:
    """``with held(model) as gate``: forward passes wait while the gate (a threading.Event) is clear."""
    import threading

    @contextmanager
    def hold(model: Any) -> Iterator[threading.Event]:
        gate = threading.Event()
        gate.set()
        hook = model.register_forward_pre_hook(lambda *_: gate.wait(30) and None)
        try:
            yield gate
        finally:
            gate.set()
            hook.remove()

    return hold

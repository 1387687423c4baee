"""What the training tests share: one thread, tiny models, sequences with observations in the middle."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from agent_rl.config.schema import AlgoConfig, ModelConfig, OptimConfig
from agent_rl.testing import tiny_model
from agent_rl.train.batch import TrainSequence
from agent_rl.train.policy import Policy

VOCABULARY = 50


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    """A policy over the same random weights each time; ``dtype`` float64 leaves rounding out of a comparison."""

    def make(*, dtype: torch.dtype = torch.float32, lr: float = 1e-3, **model_settings: Any) -> Policy:
        optim = OptimConfig(lr=lr, max_grad_norm=1e9)
        return Policy(tiny_model(VOCABULARY).to(dtype), ModelConfig(**model_settings), optim)

    return make


@pytest.fixture
def make_sequences() -> Callable[..., list[TrainSequence]]:
    """Rollouts of several lengths with prompt, two turns and an observation; groups of ``group_size`` share a prompt.

    ``sampler_logprobs`` are made up: only ``mismatch`` reads them.
    """

    def make(count: int = 8, *, group_size: int = 4, seed: int = 0) -> list[TrainSequence]:
        rng = random.Random(seed)
        made = []
        for index in range(count):
            if index % group_size == 0:
                prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 6))]
            lengths = [rng.randint(1, 9), rng.randint(0, 7), rng.randint(1, 5)]
            mask = [0] * len(prompt)
            mask += [flag for flag, length in zip((1, 0, 1), lengths, strict=True) for _ in range(length)]
            ids = prompt + [rng.randrange(VOCABULARY) for _ in mask[len(prompt) :]]
            logprobs = [-rng.random() if flag else 0.0 for flag in mask]
            made.append(TrainSequence(ids, mask, logprobs, rng.choice([-1.0, 0.5, 1.5]), index // group_size))
        return made

    return make


@pytest.fixture
def gradients() -> Callable[[Policy], dict[str, torch.Tensor]]:
    """What has been summed for the next optimiser step, by parameter."""

    def collect(policy: Policy) -> dict[str, torch.Tensor]:
        return {name: gradient.clone() for name, gradient in policy.gradients().items()}

    return collect


@pytest.fixture
def grpo() -> Callable[..., AlgoConfig]:
    """GRPO without a KL term, changed by the keywords; ``beta`` sets the KL."""

    def config(*, beta: float = 0.0, **changes: Any) -> AlgoConfig:
        return AlgoConfig(kl={"beta": beta}, **changes)

    return config

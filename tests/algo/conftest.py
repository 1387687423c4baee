"""A batch of flat tokens spread over probabilities and ratios, so that weights and clips are active."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import torch

import configs
from agent_rl.algo.filters import select_tokens
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import BatchCounts, TokenBatch
from agent_rl.config.compose import compose
from agent_rl.config.schema import AlgoConfig, RunConfig

ALL_PRESETS = sorted(file.stem for file in (Path(configs.__file__).parent / "algo").glob("*.yaml"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "preset_name" in metafunc.fixturenames:
        metafunc.parametrize("preset_name", ALL_PRESETS)


@pytest.fixture(scope="session")
def preset() -> Callable[..., AlgoConfig]:
    """The algorithm of a preset, under overrides of its own section."""

    @cache
    def load(name: str, *overrides: str) -> AlgoConfig:
        return cast("RunConfig", compose("train", [f"algo={name}", *(f"algo.{text}" for text in overrides)])).algo

    return load


@pytest.fixture
def objective(preset: Callable[..., AlgoConfig], preset_name: str) -> Objective:
    return Objective(preset(preset_name), max_response_tokens=12)


def make_tokens(lengths: Sequence[int], *, seed: int = 0, dtype: torch.dtype = torch.float64) -> TokenBatch:
    """Sequences of ``lengths`` tokens, two to a group, a fifth of the tokens untrained (the first never is)."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(lengths)

    def draw() -> torch.Tensor:
        return torch.rand(size, generator=generator, dtype=torch.float64)

    sequence = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    group = sequence // 2
    mask = draw() > 0.2
    mask[torch.tensor([0, *lengths]).cumsum(0)[:-1]] = True
    logp = (draw() ** 3).clamp(1e-6).log()
    rewards = [float(index % 3) for index in range(len(lengths))]
    centred = torch.tensor(rewards, dtype=torch.float64) - 0.8
    return TokenBatch(
        logp=logp.to(dtype, copy=True).requires_grad_(True),
        logp_old=(logp + 0.8 * (draw() - 0.5)).clamp(max=-1e-6).to(dtype),
        logp_ref=(logp + 0.8 * (draw() - 0.5)).clamp(max=-1e-6).to(dtype),
        logp_rollout=(logp + 0.8 * (draw() - 0.5)).clamp(max=-1e-6).to(dtype),
        logit=(20 * draw()).to(dtype),
        drawn_weight=(draw() + 0.5).to(dtype),
        advantage=centred[sequence].to(dtype),
        mask=mask,
        sequence=sequence,
        group=group,
        counts=BatchCounts.of(mask, sequence, group),
    )


def select(objective: Objective, batch: TokenBatch, update: str) -> TokenBatch:
    """The batch with the token filter's choice for ``update``, as the trainer makes it: over all trained tokens."""
    entropy = -batch.logp_old * batch.logp_old.exp()
    chosen = torch.zeros_like(batch.mask)
    chosen[batch.mask] = select_tokens(
        objective.config.token_filter, update, batch.logp_old[batch.mask], entropy[batch.mask]
    )
    batch.selected = chosen
    return batch

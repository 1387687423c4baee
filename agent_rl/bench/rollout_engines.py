"""The engines of `agent-rl bench rollout`: the project's own, and the common pattern beside it.

An engine runs all episodes, so many in flight, with tools of some latency, and says when each was done. A further one
is a class with ``run`` and ``close`` and a line in ``ENGINES``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from agent_rl.bench.episodes import Episodes, ForcedLengths, latency
from agent_rl.config.schema import BenchRolloutConfig
from agent_rl.models import resolve_model_path
from agent_rl.rollout.groups import GroupPlan, run_groups
from agent_rl.rollout.statistics import rollout_metrics
from agent_rl.rollout.trajectory import StopReason, Trajectory
from agent_rl.samplers.hf import HFSampler
from agent_rl.train.policy import load_model


@dataclass(frozen=True, slots=True)
class Run:
    """``done``: when each trajectory was done (time.perf_counter, in order); ``last_begun``: when the last one began,
    None for an engine that works in waves; ``metrics``: of rollouts, where the engine has them."""

    done: list[float]
    last_begun: float | None
    metrics: dict[str, float]


class Engine(Protocol):
    def run(self, in_flight: int, latency_s: float) -> Run: ...

    def close(self) -> None: ...


class OurEngine:
    """The rollout loop over the embedded sampler, as training runs it."""

    def __init__(self, config: BenchRolloutConfig, episodes: Episodes) -> None:
        self._config, self._episodes = config, episodes
        model, _ = load_model(resolve_model_path(config.model.path), config.model)
        settings = config.sampler
        self._sampler = HFSampler(
            model, episodes.codec, max_batch=settings.max_batch, kv_budget_mb=settings.kv_budget_mb
        )
        self._runs = 0

    def run(self, in_flight: int, latency_s: float) -> Run:
        self._runs += 1
        self._sampler.policy_updated(self._runs)  # no prompt of the run before is kept
        self._sampler.take_stats()
        forced = ForcedLengths(self._sampler, self._config)
        plan = GroupPlan(self._config.group_size, min_group=1, retries=0, max_in_flight=in_flight)
        done: list[float] = []

        def note(trajectory: Trajectory) -> None:
            if trajectory.stop_reason is not StopReason.MAX_TURNS:
                raise RuntimeError(f"{trajectory.session}: {trajectory.stop_reason}, {trajectory.failure}")
            done.append(time.perf_counter())

        spec, label = self._episodes.spec(forced, latency_s), self._episodes.label
        groups = asyncio.run(run_groups(self._episodes.items, spec, plan, seed=self._runs, label=label, on_done=note))
        stats = self._sampler.take_stats()
        metrics = rollout_metrics(groups) | {
            "sampler/mean_batch": stats.decoded_tokens / stats.decode_passes,
            "rollout/kv_evictions": float(stats.kv_evictions),
        }
        return Run(done, forced.last_begun, metrics)

    def close(self) -> None:
        self._sampler.close()


class LockstepEngine:
    """All trajectories of a wave take their turn together: `generate` over the whole history, padded on the left, then
    the tool calls, all at once, then `generate` over what is now the history. No log-probabilities are kept."""

    def __init__(self, config: BenchRolloutConfig, episodes: Episodes) -> None:
        self._config, self._episodes = config, episodes
        self._model, tokenizer = load_model(resolve_model_path(config.model.path), config.model)
        self._model.set_attn_implementation("sdpa")  # what transformers takes by itself
        self._pad = int(tokenizer.pad_token_id or 0)

    def run(self, in_flight: int, latency_s: float) -> Run:
        sessions, done = self._episodes.sessions, list[float]()
        for start in range(0, len(sessions), in_flight):
            wave = sessions[start : start + in_flight]
            histories = [self._episodes.prompt(item) for item, _ in wave]
            self._turn(histories, self._config.query_tokens)
            asyncio.run(self._call([session for _, session in wave], latency_s))
            for history in histories:
                history += self._episodes.observation
            self._turn(histories, self._config.answer_tokens)
            done += [time.perf_counter()] * len(wave)
        return Run(done, None, {})

    def _turn(self, histories: Sequence[list[int]], count: int) -> None:
        """Append ``count`` sampled tokens to each."""
        width = max(map(len, histories))
        ids = torch.tensor([[self._pad] * (width - len(ids)) + ids for ids in histories], device=self._model.device)
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in histories], device=ids.device)
        with torch.inference_mode():
            out = self._model.generate(  # type: ignore[operator]
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=count,
                max_new_tokens=count,
                pad_token_id=self._pad,
            )
        for history, row in zip(histories, out[:, width:].tolist(), strict=True):
            history += row

    async def _call(self, sessions: Sequence[str], latency_s: float) -> None:
        await asyncio.gather(*(asyncio.sleep(latency(latency_s, session)) for session in sessions))

    def close(self) -> None:
        return None


ENGINES: dict[str, Callable[[BenchRolloutConfig, Episodes], Engine]] = {"hf": OurEngine, "lockstep": LockstepEngine}

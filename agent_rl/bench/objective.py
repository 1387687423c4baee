"""`agent-rl bench objective`: what presets do to one real batch, and what they cost."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast

import torch

from agent_rl.algo.diagnostics import PROBABILITY_EDGES
from agent_rl.algo.objective import Objective
from agent_rl.algo.records import TokenBatch
from agent_rl.algo.weights import draw_weights
from agent_rl.config.commands import BenchObjectiveCommand, run_config
from agent_rl.config.compose import compose
from agent_rl.config.schema import AlgoConfig, EmbeddedBackend, RunConfig
from agent_rl.errors import UsageError
from agent_rl.train.batch import TrainSequence, make_micro_batches
from agent_rl.train.checkpoint import find_model
from agent_rl.train.logprobs import token_logprobs
from agent_rl.train.policy import Policy, load_model
from agent_rl.train.update import UpdateSettings, count_batch, update

LOSSES_PER_TIMING = 50


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of a preset over seconds of its peer, measured in turns: median and range over the pairs."""

    peer_ms: float
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def bench_objective(command: BenchObjectiveCommand, config_dir: Path | None) -> None:
    """Print the table of gradients and the cost of ``algo`` against ``peer``; a run's weights are not changed."""
    if command.run is None:
        raise UsageError("bench objective measures on the trajectories of a run: add run=runs/demo, say")
    config, run = run_config(command), Path(command.run)
    algos = {name: _preset(name, config_dir) for name in dict.fromkeys((*command.presets, command.peer))}
    path, label, _ = find_model(run, str(command.checkpoint))
    step, sequences = read_step(run, command.step)
    if isinstance(config.backend, EmbeddedBackend) and config.backend.threads:
        torch.set_num_threads(config.backend.threads)
    policy = Policy(load_model(path, config.model)[0], config.model, config.train.optim)
    tokens = sum(sequence.trained for sequence in sequences)
    print(f"{len(sequences)} trajectories, {tokens} trained tokens of step {step} of {run}, weights of {label}\n")
    shown = {name: algos[name] for name in command.presets}
    print("\n".join(table(batch_metrics(policy, shown, sequences, config))))
    names = f"{config.algo.name} / {command.peer}"
    print(f"\n{names}, median (range) of {command.pairs} pairs, no KL:")
    loss = loss_cost(policy, config.algo, algos[command.peer], sequences, config, command.pairs)
    print(f"  objective alone, forward and backward   {loss}   ({command.peer}: {loss.peer_ms:.2f} ms)")
    whole, share = update_cost(policy, config.algo, algos[command.peer], sequences, config, command.pairs)
    print(f"  whole update                            {whole}   ({command.peer}: {whole.peer_ms:.0f} ms)")
    print(f"  diagnostics' share of an update         {share:.2%}")


def _preset(name: str, config_dir: Path | None) -> AlgoConfig:
    return cast("RunConfig", compose("train", [f"algo={name}"], config_dir)).algo


def read_step(run: Path, step: int | None) -> tuple[int, list[TrainSequence]]:
    """The trained trajectories of a step (the first recorded one by default).

    Raises UsageError where the run has none.
    """
    files = sorted((run / "trajectories").glob("step_*.jsonl.gz"))
    wanted = [file for file in files if step is None or file.name == f"step_{step:06d}.jsonl.gz"]
    if not wanted:
        have = ", ".join(str(int(file.name[5:11])) for file in files) or "none"
        raise UsageError(f"step={step}: run={run} has no trajectories of it (steps there: {have})")
    with gzip.open(wanted[0], "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    groups = {name: place for place, name in enumerate(dict.fromkeys(record["group"] for record in records))}
    sequences = [
        TrainSequence(r["ids"], r["loss_mask"], r["logprobs"], r["advantage"], groups[r["group"]])
        for r in records
        if r["advantage"] is not None
    ]
    if not any(sequence.advantage for sequence in sequences):
        raise UsageError(f"run={run}: in step {wanted[0].name[5:11]} every advantage is 0; give another step")
    return int(wanted[0].name[5:11]), sequences


def batch_metrics(
    policy: Policy, algos: dict[str, AlgoConfig], sequences: Sequence[TrainSequence], config: RunConfig
) -> dict[str, dict[str, float]]:
    """By preset, the diagnostics of one update at learning rate 0. KL terms are left out: they need no reference."""
    found = {}
    for name, algo in algos.items():
        objective = _without_kl(algo, config)
        for place, sequence in enumerate(sequences):
            sequence.selected = sequence.old_logprobs = sequence.old_entropy = None
            sequence.drawn_weights = torch.tensor(draw_weights(sequence.trained, place))
        found[name] = update(policy, objective, sequences, _settings(config), lr=0.0)
    return found


def update_cost(
    policy: Policy,
    algo: AlgoConfig,
    peer: AlgoConfig,
    sequences: Sequence[TrainSequence],
    config: RunConfig,
    pairs: int,
) -> tuple[Ratio, float]:
    """A whole update (forward, backward, AdamW, diagnostics) against the peer's, and the diagnostics' share of it."""
    shares: list[float] = []

    def step(config_of: AlgoConfig) -> Callable[[], None]:
        objective = _without_kl(config_of, config)

        def run() -> None:
            metrics = update(policy, objective, sequences, _settings(config), lr=0.0)  # its norm waits for a GPU
            shares.append(metrics["time/diagnostics_s"] / metrics["time/update_s"])

        return run

    ratio = _paired(step(algo), step(peer), pairs)
    return ratio, median(shares)


def loss_cost(
    policy: Policy,
    algo: AlgoConfig,
    peer: AlgoConfig,
    sequences: Sequence[TrainSequence],
    config: RunConfig,
    pairs: int,
) -> Ratio:
    """The objective alone, forward and backward from given log-probabilities, against the peer's."""
    batch = _flat_batch(policy, sequences, config)

    def run(objective: Objective) -> Callable[[], None]:
        def several() -> None:
            for _ in range(LOSSES_PER_TIMING):
                torch.autograd.grad(objective.loss(batch).loss, batch.logp)

        return several

    ratio = _paired(run(_without_kl(algo, config)), run(_without_kl(peer, config)), pairs)
    return Ratio(ratio.peer_ms / LOSSES_PER_TIMING, ratio.median, ratio.low, ratio.high)


def _flat_batch(policy: Policy, sequences: Sequence[TrainSequence], config: RunConfig) -> TokenBatch:
    logp, place, group, advantage = [], [], [], []
    for micro in make_micro_batches(sequences, config.train.max_batch_tokens, policy.device):
        with torch.no_grad():
            found = token_logprobs(
                policy.model,
                micro,
                temperature=config.rollout.temperature or 1.0,
                chunk_tokens=config.train.logprob_chunk_tokens,
            )
        index = torch.tensor(micro.sequences)[micro.rows.cpu()]
        logp.append(found.logp.cpu())
        place.append(index)
        group.append(torch.tensor([s.group for s in sequences])[index])
        advantage.append(torch.tensor([s.advantage for s in sequences])[index])
    values = torch.cat(logp)
    return TokenBatch(
        logp=values.clone().requires_grad_(True),
        logp_old=values,
        advantage=torch.cat(advantage),
        mask=torch.ones_like(values, dtype=torch.bool),
        sequence=torch.cat(place),
        group=torch.cat(group),
        counts=count_batch(sequences),
    )


def _paired(first: Callable[[], None], second: Callable[[], None], pairs: int) -> Ratio:
    """Time both in turns, each going first every other time, after one unmeasured run of each.

    On a CPU in processor seconds, which other work on the machine does not lengthen; on a GPU by the clock.
    """
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    first()
    second()
    ratios, peers = [], []
    for index in range(pairs):
        seconds = {}
        for which in (first, second) if index % 2 else (second, first):
            began = clock()
            which()
            seconds[which] = clock() - began
        ratios.append(seconds[first] / seconds[second])
        peers.append(seconds[second])
    return Ratio(1000 * median(peers), median(ratios), min(ratios), max(ratios))


def _without_kl(algo: AlgoConfig, config: RunConfig) -> Objective:
    """A reference model costs every preset the same; leaving it out makes differences weigh more."""
    kl = algo.kl.model_copy(update={"beta": 0.0})
    return Objective(algo.model_copy(update={"kl": kl}), config.rollout.max_response_tokens)


def _settings(config: RunConfig) -> UpdateSettings:
    return UpdateSettings(
        temperature=config.rollout.temperature or 1.0,
        max_batch_tokens=config.train.max_batch_tokens,
        logprob_chunk_tokens=config.train.logprob_chunk_tokens,
        drop_uniform_groups=False,
    )


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """Markdown: one row a preset."""
    buckets = [f"{low:g}-{high:g}" for low, high in itertools.pairwise(PROBABILITY_EDGES)]
    lines = [
        "| preset | mean w | dead positives | gradient share of p in " + " | ".join(buckets) + " |",
        "| --- " * (3 + len(buckets)) + "|",
    ]
    for name, metrics in found.items():
        shares = [
            f"{metrics[f'objective/grad_share_p{low:g}_{high:g}']:.3f}"
            for low, high in itertools.pairwise(PROBABILITY_EDGES)
        ]
        dead = metrics["objective/dead_positive_fraction"]
        lines.append(f"| `{name}` | {metrics['weight/mean']:.3f} | {dead:.3f} | " + " | ".join(shares) + " |")
    return lines

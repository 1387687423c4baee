"""The benchmark of rollouts: that both engines do the work they are said to do, and that the figures are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agent_rl.bench.episodes import Episodes, ForcedLengths, latency
from agent_rl.bench.rollout import _full_rate, bench_rollout
from agent_rl.bench.rollout_engines import ENGINES, LockstepEngine, OurEngine, Run
from agent_rl.config.compose import compose
from agent_rl.config.schema import BenchRolloutConfig
from agent_rl.errors import ConfigError
from agent_rl.models import resolve_model_path
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.testing import tiny_model


def test_rate_while_full_leaves_out_both_ends() -> None:
    run = Run([1.0, 2.0, 3.0, 3.5, 4.0, 9.0], last_begun=4.0, metrics={})
    assert _full_rate(run, 2) == pytest.approx(3 / 2)  # done at 3.0, 3.5 and 4.0, between 2.0 and 4.0
    assert _full_rate(run, 4) is None, "too short to be full"
    assert _full_rate(Run(run.done, None, {}), 2) is None


def test_a_session_waits_the_same_in_every_engine() -> None:
    waits = [latency(2.0, f"bench/{n}") for n in range(400)]
    assert waits == [latency(2.0, f"bench/{n}") for n in range(400)]
    assert 1.7 < sum(waits) / 400 < 2.3
    assert latency(0, "bench/0") == 0


class OneToken:
    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        return SampledTurn([1], [-0.1], "stop", None, 0)

    async def end_session(self, session: str) -> None:
        return None


async def test_a_turn_of_another_length_is_an_error() -> None:
    forced = ForcedLengths(OneToken(), BenchRolloutConfig(query_tokens=3))
    with pytest.raises(RuntimeError, match="a turn of 1 tokens"):
        await forced.sample([0] * 90, SamplingParams(), session="s")


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("episodes=10", "episodes=10 are no whole groups of group_size=8"),
        ("engines=[hf,hf]", "engines=[hf,hf] names one twice"),
        ("engines=[lockstep]", "latency_engines=[hf] names one that is not in engines"),
    ],
)
def test_settings_without_meaning_are_refused(override: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("bench-rollout", [override], None)
    assert fault in str(caught.value)


def test_the_list_of_engines_is_that_of_the_schema() -> None:
    field: Any = BenchRolloutConfig.model_fields["engines"]
    assert set(field.annotation.__args__[0].__args__) == set(ENGINES)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BenchRolloutConfig:
    """A short bench of a tiny model, whose tokenizer takes every byte for a token."""
    folder = tmp_path_factory.mktemp("tiny")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate([*alphabet, "<eos>"])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder)
    tiny_model(257).save_pretrained(folder)
    settings = ["episodes=24", "group_size=4", "in_flight=[4]", "rounds=2", "latencies_s=[0.1]", "threads=1"]
    found: Any = compose("bench-rollout", [f"model.path={folder}", "model.device=cpu", *settings], None)
    return found


def test_both_engines_feed_the_model_the_same_lengths(small: BenchRolloutConfig) -> None:
    episodes = Episodes(small, AutoTokenizer.from_pretrained(resolve_model_path(small.model.path)))
    assert [len(episodes.prompt(item)) for item in episodes.items] == [90] * 6
    assert episodes.prompt(episodes.items[0]) != episodes.prompt(episodes.items[1])
    assert len(episodes.observation) == 90
    ours = OurEngine(small, episodes)
    try:
        run = ours.run(4, 0.0)
    finally:
        ours.close()
    assert len(run.done) == 24
    found = run.metrics
    assert (found["rollout/prompt_tokens_mean"], found["rollout/policy_tokens_mean"]) == (90, 20)
    assert (found["rollout/tool_tokens_mean"], found["rollout/turns_mean"]) == (90, 2)
    peer = LockstepEngine(small, episodes)
    widths: list[tuple[int, int]] = []
    peer._model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    assert len(peer.run(4, 0.0).done) == 24
    wave = [(4, 90)] + [(4, 1)] * 11 + [(4, 90 + 12 + 90)] + [(4, 1)] * 7
    assert widths == wave * 6


def test_whole_bench_tells_its_figures(small: BenchRolloutConfig, tmp_path: Path) -> None:
    lines: list[str] = []
    out = tmp_path / "figures.json"
    cells = bench_rollout(small.model_copy(update={"out": str(out)}), lines.append)
    assert [(c.engine, c.latency_s, c.round) for c in cells] == [
        ("hf", 0.0, 0),
        ("lockstep", 0.0, 0),
        ("hf", 0.1, 0),
        ("lockstep", 0.0, 1),
        ("hf", 0.0, 1),
        ("hf", 0.1, 1),
    ]
    assert len(json.loads(out.read_text())) == len(cells)
    assert all(cell.per_s > 0 and cell.cpu_s > 0 for cell in cells)
    slow = [cell.metrics for cell in cells if cell.latency_s]
    assert all(0 < metrics["rollout/tool_hidden_share"] <= 1 for metrics in slow)
    assert all(metrics["rollout/tool_s_mean"] > 0.03 for metrics in slow)
    assert any(line.startswith("hf / lockstep at 4 in flight: ") for line in lines)
    assert any(line.startswith("hf, tools of 0.1 s: ") for line in lines)

"""Sampler over vLLM's CPU build, against transformers in float32. Runs where vLLM is installed (`make test-vllm`)."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_rl.config.schema import RunConfig, VLLMSamplerConfig
from agent_rl.errors import ConfigError, SamplerError
from agent_rl.samplers.base import SampledTurn, SamplingParams
from agent_rl.samplers.make import check_trainable
from agent_rl.testing import tiny_model

INSTALLED = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not INSTALLED, reason="vLLM is not installed here: make test-vllm")
PROMPTS = [
    "Who wrote it?",
    "The capital of France is",
    "Search, then answer.\nQuestion: Where was she born?",
    "1, 2, 3",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.fixture(scope="module")
def smollm() -> Path:
    from agent_rl.models import resolve_model_path

    return Path(resolve_model_path("smollm2-135m"))


@pytest.fixture(scope="module")
def policy(smollm: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def codec(smollm: Path) -> Any:
    from transformers import AutoTokenizer

    from agent_rl.rollout.codec import HFCodec

    return HFCodec(AutoTokenizer.from_pretrained(smollm), "plain")


@pytest.fixture(scope="module")
def sampler(smollm: Path, codec: Any, policy: Any) -> Iterator[Any]:
    """One engine for all tests of this file: it takes a quarter of a minute to start."""
    from agent_rl.samplers.vllm import EngineSettings, VLLMSampler

    settings = EngineSettings(str(smollm), "cpu", "float32", max_model_tokens=512)
    made = VLLMSampler(settings, codec, VLLMSamplerConfig(max_batch=16, kv_cache_gb=0.5), policy)
    yield made
    made.close()


Ask = Callable[..., list[SampledTurn]]


@pytest.fixture
def ask(sampler: Any) -> Ask:
    def together(prompts: Sequence[list[int]], params: SamplingParams | Sequence[SamplingParams]) -> list[SampledTurn]:
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params

        async def run() -> list[SampledTurn]:
            turns = (
                sampler.sample(ids, one, session=str(n)) for n, (ids, one) in enumerate(zip(prompts, each, strict=True))
            )
            return await asyncio.wait_for(asyncio.gather(*turns), 120)

        return asyncio.run(run())

    return together


def greedy(policy: Any, ids: list[int], eos: int, tokens: int = 24) -> list[int]:
    out = policy.generate(
        torch.tensor([ids]), max_new_tokens=tokens, do_sample=False, eos_token_id=eos, pad_token_id=eos
    )
    return out[0, len(ids) :].tolist()


def logprobs(policy: Any, ids: list[int], sampled: list[int], temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        logits = policy(torch.tensor([ids + sampled])).logits[0, len(ids) - 1 : -1]
    found = torch.log_softmax(logits / temperature, dim=-1)
    return found.gather(1, torch.tensor(sampled)[:, None])[:, 0].tolist()


@needs_vllm
@pytest.mark.slow
def test_greedy_turns_are_those_of_generate(ask: Ask, policy: Any, codec: Any) -> None:
    prompts = [codec.encode(text) for text in PROMPTS]
    for ids, turn in zip(prompts, ask(prompts, GREEDY), strict=True):
        assert turn.ids == greedy(policy, ids, codec.eos_id)
        assert turn.logprobs == pytest.approx(logprobs(policy, ids, turn.ids), abs=1e-3)
        ended = turn.ids[-1] == codec.eos_id
        assert (turn.finish, turn.stop_string) == ("stop" if ended else "length", None)


@needs_vllm
@pytest.mark.slow
def test_sampled_turns_have_the_logprobs_of_their_temperature(ask: Ask, policy: Any, codec: Any) -> None:
    ids = codec.encode(PROMPTS[1])
    params = [SamplingParams(temperature=0.7, max_tokens=20, seed=seed) for seed in (1, 2, 3)]
    first, second = ask([ids] * 3, params), ask([ids] * 3, params[::-1])[::-1]
    assert len({tuple(turn.ids) for turn in first}) == 3
    assert [turn.ids for turn in first] == [turn.ids for turn in second], "a turn's draws are its seed's alone"
    for turn in first:
        assert turn.logprobs == pytest.approx(logprobs(policy, ids, turn.ids, 0.7), abs=1e-3)


@needs_vllm
@pytest.mark.slow
def test_more_prompts_at_once_than_a_pass_holds(ask: Ask, codec: Any) -> None:
    """vLLM cuts the last prompt of a full pass in two, and then rewinds its random numbers: no CPU generator can."""
    prompts = [codec.encode(f"{n}: " + "a prompt of its own, of many words, " * 24) for n in range(16)]
    assert sum(map(len, prompts)) > 2048
    turns = ask(prompts, [SamplingParams(temperature=1.0, max_tokens=3, seed=n) for n in range(16)])
    assert all(turn.ids for turn in turns)


@needs_vllm
@pytest.mark.slow
def test_turn_ends_with_the_token_that_completes_a_stop_string(ask: Ask, policy: Any, codec: Any) -> None:
    ids = codec.encode(PROMPTS[1])
    said = greedy(policy, ids, codec.eos_id)
    word = codec.decode(said[5:6]).strip()
    (turn,) = ask([ids], SamplingParams(temperature=0.0, max_tokens=24, stop_strings=(word, "@@never")))
    assert (turn.finish, turn.stop_string) == ("stop", word)
    assert turn.ids == said[: len(turn.ids)]
    assert word in codec.decode(turn.ids)
    assert word not in codec.decode(turn.ids[:-1])


@needs_vllm
@pytest.mark.slow
def test_next_turn_finds_the_last_one_in_the_cache(ask: Ask, sampler: Any, codec: Any) -> None:
    ids = codec.encode("Search, then answer. " * 20)
    (turn,) = ask([ids], GREEDY)
    sampler.take_stats()
    ask([ids + turn.ids + codec.encode(" An observation.")], GREEDY)
    stats = sampler.take_stats()
    assert stats.reused_tokens > 0.8 * len(ids)
    assert stats.decoded_tokens == 24


@needs_vllm
@pytest.mark.slow
def test_new_weights_are_the_ones_sampled_from(ask: Ask, sampler: Any, policy: Any, codec: Any) -> None:
    """Loading into vLLM's CPU build used to fail: its layers hold packed copies, and no weights."""
    prompts = [codec.encode(text) for text in PROMPTS]
    before = ask(prompts, GREEDY)
    saved = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    try:
        noise = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1 + 0.03 * torch.randn(parameter.shape, generator=noise))
        sampler.policy_updated(7)
        after = ask(prompts, GREEDY)
        assert [turn.ids for turn in after] != [turn.ids for turn in before]
        for ids, turn in zip(prompts, after, strict=True):
            assert turn.ids == greedy(policy, ids, codec.eos_id)
            assert turn.logprobs == pytest.approx(logprobs(policy, ids, turn.ids), abs=1e-3)
            assert turn.version == 7
    finally:
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                parameter.copy_(saved[name])
        sampler.policy_updated(0)
    assert [turn.ids for turn in ask(prompts, GREEDY)] == [turn.ids for turn in before]


@needs_vllm
@pytest.mark.slow
def test_cancelled_turn_leaves_and_a_policy_cannot_change_under_one(sampler: Any, codec: Any) -> None:
    long = SamplingParams(temperature=1.0, max_tokens=400, seed=1)

    async def run() -> None:
        task = asyncio.create_task(sampler.sample(codec.encode(PROMPTS[0]), long, session="a"))
        while not sampler.stats.decode_passes:  # noqa: ASYNC110 - counted by the worker thread
            await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="1 turns were being sampled"):
            sampler.policy_updated(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        turn = await sampler.sample(
            codec.encode(PROMPTS[0]), SamplingParams(temperature=0.0, max_tokens=3), session="b"
        )
        assert 1 <= len(turn.ids) <= 3
        with pytest.raises(SamplerError, match="512"):
            await sampler.sample(codec.encode("long " * 600), GREEDY, session="c")

    sampler.take_stats()
    asyncio.run(asyncio.wait_for(run(), 120))


@needs_vllm
@pytest.mark.slow
def test_in_bfloat16_it_rounds_as_much_as_the_trainer_does(smollm: Path, policy: Any, codec: Any) -> None:
    """Both compute in bfloat16 by their own kernels: each is as far from float32, and they are no further apart."""
    from agent_rl.config.schema import ModelConfig
    from agent_rl.samplers.vllm import EngineSettings, VLLMSampler
    from agent_rl.train.batch import TrainSequence, make_micro_batches
    from agent_rl.train.logprobs import token_logprobs
    from agent_rl.train.policy import load_model

    rounded, _ = load_model(str(smollm), ModelConfig(path=str(smollm), dtype="bfloat16"))
    settings = EngineSettings(str(smollm), "cpu", "bfloat16", max_model_tokens=512)
    engine = VLLMSampler(settings, codec, VLLMSamplerConfig(max_batch=16, kv_cache_gb=0.5), rounded)
    prompts = [codec.encode(prompt) for prompt in PROMPTS * 8]

    async def run() -> list[SampledTurn]:
        turns = (
            engine.sample(ids, SamplingParams(temperature=1.0, max_tokens=24, seed=n), session=str(n))
            for n, ids in enumerate(prompts)
        )
        return await asyncio.wait_for(asyncio.gather(*turns), 120)

    try:
        turns = asyncio.run(run())
    finally:
        engine.close()
    sequences = [
        TrainSequence(ids + turn.ids, [0] * len(ids) + [1] * len(turn.ids), [], 1.0, n)
        for n, (ids, turn) in enumerate(zip(prompts, turns, strict=True))
    ]
    trainer: list[float] = []
    with torch.no_grad():
        for batch in make_micro_batches(sequences, 2000, torch.device("cpu")):
            trainer += token_logprobs(rounded, batch, temperature=1.0, chunk_tokens=512).logp.tolist()
    exact = torch.tensor([x for ids, t in zip(prompts, turns, strict=True) for x in logprobs(policy, ids, t.ids)])
    sampled = torch.tensor([x for turn in turns for x in turn.logprobs])

    def apart(one: torch.Tensor, other: torch.Tensor) -> float:
        return float((one - other).abs().mean())

    ours = apart(torch.tensor(trainer), exact)
    print(
        f"{len(exact)} tokens, mean |d logp|: vLLM-float32 {apart(sampled, exact):.4f}, trainer-float32 {ours:.4f}, "
        f"vLLM-trainer {apart(sampled, torch.tensor(trainer)):.4f}"
    )
    assert 0 < apart(sampled, exact) < 1.5 * ours
    assert apart(sampled, torch.tensor(trainer)) < 2 * ours


@pytest.mark.skipif(INSTALLED, reason="vLLM is installed here")
def test_without_vllm_the_message_says_how_to_get_it() -> None:
    from agent_rl.samplers.vllm import EngineSettings, VLLMSampler
    from agent_rl.testing import ToyCodec

    codec = ToyCodec()
    with pytest.raises(ConfigError, match=r"sampler=vllm needs vLLM.*agent-rl\[vllm\]"):
        VLLMSampler(EngineSettings("x", "cpu", "float32", 10), codec, VLLMSamplerConfig(), tiny_model(codec.vocabulary))
    with pytest.raises(ConfigError, match=r"sampler\.sleep=true"):
        VLLMSampler(EngineSettings("x", "cpu", "float32", 10), codec, VLLMSamplerConfig(sleep=True))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sampler": {"kind": "remote"}}, "nothing brings the new weights"),
        ({"sampler": {"kind": "vllm"}, "model": {"lora": {}}}, "model.lora with sampler=vllm"),
    ],
)
def test_samplers_that_cannot_follow_a_policy_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trainable(RunConfig.model_validate(values))
    check_trainable(RunConfig())


@needs_vllm
@pytest.mark.slow
def test_served_model_is_sampled_from_over_http(smollm: Path, policy: Any, codec: Any, tmp_path: Path) -> None:
    """vLLM's own OpenAI-compatible server through the remote sampler: the same ids as in process."""
    import os
    import socket
    import subprocess
    import sys

    from agent_rl.config.schema import RemoteSamplerConfig
    from agent_rl.samplers.http import ModelServer
    from agent_rl.samplers.remote import RemoteSampler

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(smollm), "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--served-model-name", "smollm"]
    log = (tmp_path / "server.log").open("w")
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    prompts = [codec.encode(text) for text in PROMPTS]
    said = greedy(policy, prompts[1], codec.eos_id)
    word = codec.decode(said[5:6]).strip()

    async def ask() -> list[SampledTurn]:
        opened = ModelServer(RemoteSamplerConfig(url=f"http://127.0.0.1:{port}", retries=0))
        try:
            async with asyncio.timeout(200):
                while True:
                    try:
                        name = await opened.model_name()
                        break
                    except ValueError:
                        assert server.poll() is None, (tmp_path / "server.log").read_text()[-3000:]
                        await asyncio.sleep(1)
                sampler = RemoteSampler(opened, codec, name)
                await sampler.check()
                stop = SamplingParams(temperature=0.0, max_tokens=24, stop_strings=("@@never", word))
                plain = [sampler.sample(ids, GREEDY, session="s") for ids in prompts]
                return await asyncio.gather(*plain, sampler.sample(prompts[1], stop, session="s"))
        finally:
            await opened.aclose()

    try:
        *turns, stopped = asyncio.run(ask())
    finally:
        os.killpg(server.pid, 9)
        server.wait()
        log.close()
    for ids, turn in zip(prompts, turns, strict=True):
        assert turn.ids == greedy(policy, ids, codec.eos_id)
        assert turn.logprobs == pytest.approx(logprobs(policy, ids, turn.ids), abs=1e-3)
    assert (stopped.finish, stopped.stop_string) == ("stop", word)
    assert stopped.ids == said[: len(stopped.ids)]
    assert word in codec.decode(stopped.ids)
    assert word not in codec.decode(stopped.ids[:-1])

"""Sampler over a vLLM engine in this process: on one GPU, or vLLM's CPU build.

A worker thread owns the engine: it hands in the turns that wait, and steps. vLLM's prefix cache takes the place of a
cache for each trajectory: all but the new tokens of a turn, and the prompt of a group, are found there.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_rl.config.schema import VLLMSamplerConfig
from agent_rl.errors import ConfigError, SamplerError
from agent_rl.rollout.codec import TokenCodec
from agent_rl.samplers.base import Finish, SampledTurn, SamplingParams
from agent_rl.samplers.deliver import deliver
from agent_rl.samplers.stats import SamplerStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CPU_KV_CACHE_GB = 2.0


@dataclass(slots=True)
class _Turn:
    request_id: str
    ids: list[int]
    params: SamplingParams
    future: asyncio.Future[SampledTurn]
    loop: asyncio.AbstractEventLoop


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine starts with. ``path``: a local folder or hub id; ``max_model_tokens``: prompt and response."""

    path: str
    device: str
    dtype: str
    max_model_tokens: int
    revision: str | None = None
    trust_remote_code: bool = False


class VLLMSampler:
    """Sampler over vLLM's engine.

    ``policy``: the model that is trained, whose weights ``policy_updated`` copies into the engine; None where it keeps
    those of ``settings.path``. Raises ConfigError where vLLM is not installed, or is one that cannot do it.
    """

    def __init__(
        self,
        settings: EngineSettings,
        codec: TokenCodec,
        config: VLLMSamplerConfig,
        policy: PreTrainedModel | None = None,
    ) -> None:
        if config.sleep and settings.device == "cpu":
            raise ConfigError("sampler.sleep=true gives GPU memory back, and model.device is cpu; use sleep=false")
        self._settings, self._codec, self._config, self._policy = settings, codec, config, policy
        self._inbox: queue.SimpleQueue[_Turn | str | Callable[[], None] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._turns: dict[str, _Turn] = {}  # in the engine; the worker's own
        self._pending, self._closed, self._asleep = 0, False, False
        self._lock = threading.Lock()
        self.version = 0
        self.stats = SamplerStats()
        ready: Future[None] = Future()
        self._worker = threading.Thread(target=self._work, args=(ready,), name="vllm-sampler", daemon=True)
        self._worker.start()
        ready.result()

    # ------------------------------------------------------------ called from the event loop

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        loop = asyncio.get_running_loop()
        turn = _Turn(f"{session}#{next(self._numbers)}", list(ids), params, loop.create_future(), loop)
        with self._lock:
            if self._closed:
                raise SamplerError("the sampler is closed")
            self._pending += 1
            self._inbox.put(turn)
        try:
            return await turn.future
        except asyncio.CancelledError:
            self._inbox.put(turn.request_id)
            raise
        finally:
            with self._lock:
                self._pending -= 1

    async def end_session(self, session: str) -> None:
        """Nothing is kept for a session: the prefix cache forgets what is not used."""

    def policy_updated(self, version: int) -> None:
        """Copy the policy's weights into the engine and drop what the old ones cached.

        Raises RuntimeError where turns are being sampled, or where the sampler has no policy.
        """
        if self._policy is None:
            raise RuntimeError("this sampler has the weights of a folder, not a policy's")
        with self._lock:
            if self._pending:
                raise RuntimeError(f"the policy changed while {self._pending} turns were being sampled")
        self._do(self._load_weights)
        self.version = version

    def release_memory(self) -> None:
        """Give the GPU's memory back until ``policy_updated`` (``sampler.sleep``); else nothing."""
        if self._config.sleep and not self._asleep:
            # Level 2 drops the weights too: the next ones come from the policy.
            self._do(lambda: self._engine.sleep(level=2))
            self._asleep = True

    def take_stats(self) -> SamplerStats:
        stats, self.stats = self.stats, SamplerStats()
        return stats

    def close(self) -> None:
        """Stop the engine; turns still waiting end with SamplerError."""
        with self._lock:
            self._closed = True  # under the lock, so that no turn stands behind the None in the inbox
        self._inbox.put(None)
        self._worker.join()

    # ------------------------------------------------------------ the worker thread

    def _work(self, ready: Future[None]) -> None:
        try:
            self._engine = self._start()
        except BaseException as error:  # the constructor waits for it
            ready.set_exception(error)
            return
        ready.set_result(None)
        while self._take(block=not self._turns):
            if self._turns:
                try:
                    self._step()
                except Exception as error:
                    self._abort_all(SamplerError(f"{type(error).__name__}: {error}"))
        self._abort_all(SamplerError("the sampler was closed"))
        self._engine.engine_core.shutdown()

    def _start(self) -> Any:
        # In this process: the policy's weights are then copied from memory to memory.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        on_cpu = self._settings.device == "cpu"
        if on_cpu:
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the trainer's threads are not vLLM's
        try:
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise ConfigError(
                f"sampler=vllm needs vLLM, which cannot be imported here ({error}); install it "
                '(pip install "agent-rl[vllm]", without a GPU: make test-vllm makes an environment) or use sampler=hf'
            ) from error
        if self._policy is not None:
            _check_reload()
        config, settings = self._config, self._settings
        cache = config.kv_cache_gb or (CPU_KV_CACHE_GB if on_cpu else None)
        longest = config.max_model_tokens or settings.max_model_tokens
        arguments = {
            "model": settings.path,
            "revision": settings.revision,
            "trust_remote_code": settings.trust_remote_code,
            "dtype": settings.dtype,
            "max_model_len": longest,
            "max_num_seqs": config.max_batch,
            "enforce_eager": on_cpu if config.enforce_eager is None else config.enforce_eager,
            "gpu_memory_utilization": config.gpu_memory_fraction,
            "enable_prefix_caching": True,
            "enable_sleep_mode": config.sleep,
            "logprobs_mode": "processed_logprobs",  # at the sampling temperature, as the trainer's are
            "disable_log_stats": True,
            **(_cpu_arguments(longest) if on_cpu else {}),
            **({} if cache is None else {"kv_cache_memory_bytes": int(cache * 2**30)}),
        }
        try:
            return LLMEngine.from_engine_args(EngineArgs(**(arguments | config.engine_args)))
        except (TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ConfigError(f"vLLM does not start with these settings of sampler and model: {reason}") from error

    def _take(self, *, block: bool) -> bool:
        """Hand messages on to the engine; False once the sampler is to end."""
        while True:
            try:
                message = self._inbox.get(block=block)
            except queue.Empty:
                return True
            block = False
            if message is None:
                return False
            if isinstance(message, _Turn):
                self._add(message)
            elif isinstance(message, str):
                if self._turns.pop(message, None) is not None:
                    self._engine.abort_request([message])
            else:
                message()

    def _add(self, turn: _Turn) -> None:
        from vllm import SamplingParams as EngineParams
        from vllm.inputs import TokensPrompt

        params = EngineParams(
            temperature=turn.params.temperature,
            max_tokens=turn.params.max_tokens,
            stop=list(turn.params.stop_strings),
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self._codec.eos_ids),
            ignore_eos=True,  # the codec knows every end token, vLLM the tokenizer's
            seed=turn.params.seed & 0x7FFFFFFF,  # it takes 32 bits
            logprobs=0,  # of the sampled token alone
        )
        try:
            self._engine.add_request(turn.request_id, TokensPrompt(prompt_token_ids=turn.ids), params)
        except Exception as error:  # e.g. longer than max_model_tokens; the worker must outlive it
            deliver(turn.future, turn.loop, SamplerError(str(error)))
        else:
            self._turns[turn.request_id] = turn

    def _step(self) -> None:
        self.stats.decode_passes += 1
        for output in self._engine.step():
            turn = self._turns.pop(output.request_id, None) if output.finished else None
            if turn is None:
                continue
            sampled = output.outputs[0]
            ids = [int(token) for token in sampled.token_ids]
            cached = output.num_cached_tokens or 0
            self.stats.decoded_tokens += len(ids)
            self.stats.reused_tokens += cached
            self.stats.prefilled_tokens += len(turn.ids) - cached
            if sampled.finish_reason not in ("stop", "length"):
                deliver(turn.future, turn.loop, SamplerError(f"vLLM ended the turn with {sampled.finish_reason!r}"))
                continue
            finish: Finish = sampled.finish_reason
            stop = sampled.stop_reason if isinstance(sampled.stop_reason, str) else None
            # It computes in half precision: a certain token may come out a hair above 0.
            logprobs = [min(float(sampled.logprobs[n][token].logprob), 0.0) for n, token in enumerate(ids)]
            deliver(turn.future, turn.loop, SampledTurn(ids, logprobs, finish, stop, self.version))

    def _abort_all(self, error: SamplerError) -> None:
        turns, self._turns = list(self._turns.values()), {}
        for turn in turns:
            deliver(turn.future, turn.loop, error)
        with contextlib.suppress(Exception):  # an engine that died has nothing to abort
            self._engine.abort_request([turn.request_id for turn in turns])

    def _do(self, work: Callable[[], Any]) -> None:
        """Run ``work`` in the worker thread, between two steps, and raise what it raises."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        self._inbox.put(run)
        done.result()

    def _load_weights(self) -> None:
        policy, engine = self._policy, self._engine
        assert policy is not None
        if self._asleep:
            engine.wake_up(tags=["weights"])
        weights = ((name, parameter.detach()) for name, parameter in policy.named_parameters())
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        engine.collective_rpc(_repack_tied_head)
        if self._asleep:
            engine.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not engine.reset_prefix_cache():
            raise SamplerError("vLLM did not drop the cache of the old weights")


def _cpu_arguments(longest: int) -> dict[str, Any]:
    """What vLLM's CPU build wants otherwise than a GPU.

    It shares prefixes in blocks of 128 tokens, which short prompts never fill. A prompt that is prefilled in parts
    rewinds the random numbers of its seed, which a CPU generator cannot.
    """
    return {"block_size": 32, "enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, longest)}


def _check_reload() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if "weights_iterator" not in inspect.signature(GPUModelRunner.reload_weights).parameters:
        import vllm

        raise ConfigError(
            f"sampler=vllm: vLLM {vllm.__version__} cannot take new weights from memory "
            "(reload_weights has no weights_iterator); install a newer one, or train with sampler=hf"
        )


def _repack_tied_head(worker: Any) -> None:
    """vLLM's CPU build computes with a packed copy of each matrix. Reloading renews it where a weight was loaded, which
    an output layer that is tied to the embedding is not."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in worker.model_runner.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)

"""The embedded sampler: a transformers model that decodes whatever is waiting, in one batch.

A worker thread owns the model while it samples. Between two tokens it admits waiting turns and lets finished
ones go; each trajectory's KV cache is kept from turn to turn, so only the new observation is prefilled; the
members of a group share the prefill of their prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from agent_rl.errors import SamplerError
from agent_rl.rollout.codec import TokenCodec
from agent_rl.samplers.base import Finish, SampledTurn, SamplingParams
from agent_rl.samplers.draw import draw
from agent_rl.samplers.kv_slab import KVSlab, Stash, check_attention
from agent_rl.samplers.stats import SamplerStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHARED_PROMPTS = 64  # prompts whose prefill is remembered for the other members of their group


@dataclass(slots=True)
class _Request:
    ids: list[int]
    params: SamplingParams
    session: str
    future: asyncio.Future[SampledTurn]
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cancelled: bool = False


class HFSampler:
    """Sampler over a causal language model of transformers that lives in this process.

    The model may be the one that is trained: ``policy_updated(version)`` after each change of its weights drops
    the caches that the old weights made. Nothing may be sampling at that moment (RuntimeError otherwise).
    Raises ConfigError for a model that it cannot serve (sliding windows, recurrent layers).
    """

    def __init__(self, model: PreTrainedModel, codec: TokenCodec, *, max_batch: int = 64) -> None:
        check_attention(model.config.get_text_config())
        self._model, self._codec, self._max_batch = model, codec, max_batch
        self._device = model.device
        self._slab: KVSlab | None = None
        self._active: list[_Request] = []
        self._stashes: dict[str, Stash] = {}
        self._prompts: OrderedDict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        self._inbox: queue.SimpleQueue[_Request | str | None] = queue.SimpleQueue()
        self._pending, self._closed = 0, False
        self._pending_lock = threading.Lock()
        self._pass_lock = threading.Lock()  # held by the worker from taking a turn to letting it go
        self.version = 0
        self.stats = SamplerStats()
        self._worker = threading.Thread(target=self._work, name="hf-sampler", daemon=True)
        self._worker.start()

    # ------------------------------------------------------------ called from the event loop

    async def sample(self, ids: list[int], params: SamplingParams, *, session: str) -> SampledTurn:
        loop = asyncio.get_running_loop()
        request = _Request(list(ids), params, session, loop.create_future(), loop, random.Random(params.seed))
        with self._pending_lock:
            if self._closed:
                raise SamplerError("the sampler is closed")
            self._pending += 1
            self._inbox.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            raise
        finally:
            with self._pending_lock:
                self._pending -= 1

    async def end_session(self, session: str) -> None:
        self._inbox.put(session)

    def policy_updated(self, version: int) -> None:
        with self._pending_lock:
            if self._pending:
                raise RuntimeError(f"the policy changed while {self._pending} turns were being sampled")
        # The worker may still be in a pass for a turn that was cancelled, and would remember its prompt after us.
        with self._pass_lock:
            self.version = version
            self._stashes.clear()
            self._prompts.clear()

    def release_memory(self) -> None:
        """Nothing: the model is the policy's own, and caches of old weights go with ``policy_updated``."""

    def take_stats(self) -> SamplerStats:
        stats, self.stats = self.stats, SamplerStats()
        return stats

    def close(self) -> None:
        """Stop the worker; turns still waiting end with SamplerError."""
        with self._pending_lock:
            self._closed = True  # under the lock, so that no turn stands behind the None in the inbox
        self._inbox.put(None)
        self._worker.join()

    # ------------------------------------------------------------ the worker thread

    def _work(self) -> None:
        waiting: list[_Request] = []
        open_ = True
        while open_:
            open_ = self._take(waiting, block=not waiting and not self._active)
            try:
                with self._pass_lock, torch.inference_mode():
                    self._admit(waiting)
                    if self._active:
                        self._decode()
            except Exception as error:  # e.g. out of memory: these turns abort, the next ones may work
                self._abort([*self._active, *waiting], SamplerError(f"{type(error).__name__}: {error}"))
                self._active, self._slab = [], None
                waiting.clear()
        self._abort([*self._active, *waiting], SamplerError("the sampler was closed"))

    def _take(self, waiting: list[_Request], *, block: bool) -> bool:
        """Move messages from the inbox; False once the sampler is to end."""
        while True:
            try:
                message = self._inbox.get(block=block)
            except queue.Empty:
                return True
            block = False
            if message is None:
                return False
            if isinstance(message, str):
                self._stashes.pop(message, None)
            else:
                waiting.append(message)

    def _admit(self, waiting: list[_Request]) -> None:
        if self._slab is None:
            self._slab = KVSlab(self._model.config.get_text_config(), self._max_batch, self._model.dtype, self._device)
        while waiting and len(self._active) < self._max_batch:
            request = waiting[0]
            if request.cancelled:
                waiting.pop(0)
                continue
            row = len(self._active)
            self._slab.clear(row)
            # It waits until it runs: an error on the way must find it in one of the two lists to end it.
            logits = self._prefill(request, row)
            self._active.append(waiting.pop(0))
            self._append(logits, [request])
            if self._finish(request) is not None:
                self._release(row)

    def _prefill(self, request: _Request, row: int) -> torch.Tensor:
        """Bring the cache of ``row`` to ``request.ids``; logits [1, V] after the last of them."""
        slab = self._slab
        assert slab is not None
        stash = self._stashes.pop(request.session, None)
        if stash is not None and request.ids[: len(stash.ids)] == stash.ids and len(stash.ids) < len(request.ids):
            slab.load(row, stash.kv)
            self.stats.reused_tokens += len(stash.ids)
        key = tuple(request.ids)
        if slab.lengths[row] == 0 and key in self._prompts:
            kv, logits = self._prompts[key]
            slab.load(row, kv)
            self.stats.shared_prompt_tokens += len(key)
            return logits
        is_first_turn = slab.lengths[row] == 0
        new = request.ids[slab.lengths[row] :]
        mask = slab.select_prefill(row, len(new))
        start = slab.lengths[row]
        positions = torch.arange(start, start + len(new), device=self._device)[None]
        logits = self._forward(torch.tensor([new], device=self._device), positions, mask)
        self.stats.prefilled_tokens += len(new)
        if is_first_turn:
            self._prompts[key] = (slab.save(row), logits)
            if len(self._prompts) > _SHARED_PROMPTS:
                self._prompts.popitem(last=False)
        return logits

    def _decode(self) -> None:
        """One token for every running turn; finished turns leave."""
        slab, rows = self._slab, len(self._active)
        assert slab is not None
        mask = slab.select_decode(rows)
        tokens = torch.tensor([[request.sampled[-1]] for request in self._active], device=self._device)
        positions = torch.tensor(slab.lengths[:rows], device=self._device)[:, None]
        logits = self._forward(tokens, positions, mask)
        self.stats.decode_passes += 1
        self._append(logits, self._active)
        for row in range(rows - 1, -1, -1):
            if self._active[row].cancelled or self._finish(self._active[row]) is not None:
                self._release(row)

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert self._slab is not None
        out = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._slab,
            use_cache=True,
            logits_to_keep=1,
        )
        self._slab.advance()
        return out.logits[:, -1]

    def _append(self, logits: torch.Tensor, requests: list[_Request]) -> None:
        """Draw the next token of each request from logits [B, V]."""
        temperatures = [request.params.temperature for request in requests]
        uniforms = [request.rng.random() for request in requests]
        tokens, logprobs = draw(logits, temperatures, uniforms)
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            request.sampled.append(token)
            request.logprobs.append(logprob)
        self.stats.decoded_tokens += len(requests)

    def _finish(self, request: _Request) -> tuple[Finish, str | None] | None:
        """How the turn ended with its newest token, or None while it goes on."""
        if request.sampled[-1] in self._codec.eos_ids:
            return "stop", None
        stops = request.params.stop_strings
        if stops:
            # A stop string that ends in the newest token starts at most as many tokens ago as it has bytes:
            # a token may be less than a character, but not less than a byte.
            longest = max(len(stop.encode()) for stop in stops)
            tail = self._codec.decode(request.sampled[-longest:])
            found = [(tail.rfind(stop), stop) for stop in stops if stop in tail]
            if found:
                return "stop", min(found)[1]
        if len(request.sampled) >= request.params.max_tokens:
            return "length", None
        return None

    def _release(self, row: int) -> None:
        """Answer the turn in ``row``, keep its cache for the next turn, and close the gap it leaves."""
        slab, request = self._slab, self._active[row]
        assert slab is not None
        if not request.cancelled:
            ended = self._finish(request)
            assert ended is not None
            known = (request.ids + request.sampled)[: slab.lengths[row]]
            self._stashes[request.session] = Stash(known, slab.save(row))
            turn = SampledTurn(request.sampled, request.logprobs, ended[0], ended[1], self.version)
            _deliver(request, turn)
        last = len(self._active) - 1
        if row != last:
            slab.move(last, row)
            self._active[row] = self._active[last]
        self._active.pop()

    def _abort(self, requests: list[_Request], error: SamplerError) -> None:
        for request in requests:
            _deliver(request, error)


def _deliver(request: _Request, outcome: SampledTurn | SamplerError) -> None:
    def settle() -> None:
        if request.future.done():
            return
        if isinstance(outcome, SampledTurn):
            request.future.set_result(outcome)
        else:
            request.future.set_exception(outcome)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the turn any more
        request.loop.call_soon_threadsafe(settle)

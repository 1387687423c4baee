"""The embedded sampler: a transformers model that decodes whatever is waiting, in one batch.

A worker thread owns the model while it samples. Between two tokens it admits waiting turns and lets finished
ones go. Each trajectory's KV cache is kept from turn to turn within a budget, so only the new observation is prefilled,
and that in the same forward pass in which the others decode; the members of a group share the prefill of their prompt.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from agent_rl.errors import SamplerError
from agent_rl.rollout.codec import TokenCodec
from agent_rl.samplers.base import Finish, SampledTurn, SamplingParams
from agent_rl.samplers.draw import draw
from agent_rl.samplers.kv_slab import KVSlab, check_attention
from agent_rl.samplers.kv_store import KeptCache, KVStore
from agent_rl.samplers.request import TurnRequest
from agent_rl.samplers.stats import SamplerStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# New tokens of one pass (more only where one turn alone has more): a longer pass is no faster for each token.
PREFILL_TOKENS = 1024


@dataclass(slots=True)
class _Joining:
    """A turn whose new tokens are in the next pass; ``sharers`` have the same prompt and start from its cache."""

    request: TurnRequest
    turn: KeptCache | None
    sharers: list[TurnRequest] = field(default_factory=list)

    @property
    def new_ids(self) -> list[int]:
        return self.request.ids[len(self.turn.ids) if self.turn else 0 :]


class HFSampler:
    """Sampler over a causal language model of transformers that lives in this process.

    ``max_batch``: turns decoded together. ``kv_budget_mb``: MiB for the caches of trajectories that wait for a tool
    and of prompts; the running batch has its own.
    The model may be the one that is trained: ``policy_updated(version)`` after each change of its weights drops
    the caches that the old weights made. Nothing may be sampling at that moment (RuntimeError otherwise).
    Raises ConfigError for a model that it cannot serve (sliding windows, recurrent layers, another attention).
    """

    def __init__(
        self, model: PreTrainedModel, codec: TokenCodec, *, max_batch: int = 64, kv_budget_mb: float = 4096
    ) -> None:
        check_attention(model.config.get_text_config())
        self._model, self._codec, self._max_batch = model, codec, max_batch
        self._device = model.device
        self._slab: KVSlab | None = None
        self._store = KVStore(int(kv_budget_mb * 2**20))
        self._active: list[TurnRequest] = []  # their place is their row of the slab
        self._joining: list[_Joining] = []
        self._sharing: list[tuple[TurnRequest, KeptCache]] = []
        self._inbox: queue.SimpleQueue[TurnRequest | str | None] = queue.SimpleQueue()
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
        request = TurnRequest(list(ids), params, session, loop.create_future(), loop, random.Random(params.seed))
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
            self._store.clear()

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
        waiting: deque[TurnRequest] = deque()
        open_ = True
        while open_:
            open_ = self._take(waiting, block=not waiting and not self._active)
            try:
                with self._pass_lock, torch.inference_mode():
                    self._choose(waiting)
                    self._pass()
            except Exception as error:  # e.g. out of memory: these turns abort, the next ones may work
                self._abort(waiting, SamplerError(f"{type(error).__name__}: {error}"))
        self._abort(waiting, SamplerError("the sampler was closed"))

    def _take(self, waiting: deque[TurnRequest], *, block: bool) -> bool:
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
                self._store.end_session(message)
            else:
                waiting.append(message)

    def _choose(self, waiting: deque[TurnRequest]) -> None:
        """Who of the waiting takes part in the next pass, in the order of their coming."""
        room, tokens = self._max_batch - len(self._active), 0
        leaders: dict[tuple[int, ...], _Joining] = {}
        while waiting and room:
            request = waiting[0]
            if request.cancelled:
                waiting.popleft()
                continue
            turn = self._store.find_turn(request.session, request.ids)
            prompt = None if turn else self._store.find_prompt(request.ids)
            leader = None if turn else leaders.get(tuple(request.ids))
            if prompt is not None:
                self._sharing.append((request, prompt))
            elif leader is not None:
                leader.sharers.append(request)
            else:
                joining = _Joining(request, turn)
                if tokens and tokens + len(joining.new_ids) > PREFILL_TOKENS:
                    return
                tokens += len(joining.new_ids)
                self._joining.append(joining)
                if turn is None:
                    leaders[tuple(request.ids)] = joining
            request.begun = time.perf_counter()
            self._store.drop_turn(request.session)
            waiting.popleft()
            room -= 1

    def _pass(self) -> None:
        """One token for every running turn and for those that join; finished turns leave."""
        if self._slab is None:
            self._slab = KVSlab(self._model.config.get_text_config(), self._max_batch, self._model.dtype, self._device)
        slab = self._slab
        self._start_sharing()
        running = len(self._active)
        for row, joining in enumerate(self._joining, running):
            slab.clear(row)
            if joining.turn is not None:
                slab.load(row, joining.turn.kv)
                self.stats.reused_tokens += len(joining.turn.ids)
        if not running and not self._joining:
            return
        logits = self._forward(running)
        self.stats.decode_passes += running > 0
        self._active += [joining.request for joining in self._joining]
        self._append(logits, self._active)
        for row, joining in enumerate(self._joining, running):
            request = joining.request
            self.stats.prefilled_tokens += len(joining.new_ids)
            lost = self._store.count_lost(request.session, request.ids)
            self.stats.reprefilled_tokens += lost
            if joining.turn is None and (joining.sharers or not lost):
                # A copy of the logits: a slice would keep those of the whole pass alive.
                prompt = KeptCache(request.ids, slab.save(row), logits[row].clone())
                self._sharing += [(sharer, prompt) for sharer in joining.sharers]
                if not lost:  # else it is a later turn, which the rest of its group will hardly ask for again
                    self.stats.kv_evictions += self._store.keep_prompt(prompt)
        self._joining = []  # not before: an error on the way must find the sharers to end them
        self._start_sharing()
        self._let_go(0)

    def _start_sharing(self) -> None:
        """Turns whose prompt another has prefilled: its cache is copied, and their first token drawn."""
        slab, sharing, first = self._slab, self._sharing, len(self._active)
        assert slab is not None
        if not sharing:
            return
        for row, (_, prompt) in enumerate(sharing, first):
            slab.load(row, prompt.kv)
            self.stats.shared_prompt_tokens += len(prompt.ids)
        requests = [request for request, _ in sharing]
        self._append(torch.stack([prompt.logits for _, prompt in sharing if prompt.logits is not None]), requests)
        self._active += requests
        self._sharing = []
        self._let_go(first)

    def _forward(self, running: int) -> torch.Tensor:
        """Logits [R + S, V] after the newest token of each running row and of each that joins."""
        slab = self._slab
        assert slab is not None
        new = [joining.new_ids for joining in self._joining]
        plan = slab.plan(running, [(row, len(ids)) for row, ids in enumerate(new, running)])
        tokens = [request.sampled[-1] for request in self._active] + [token for ids in new for token in ids]
        out = self._model(
            input_ids=torch.tensor([tokens], device=self._device),
            position_ids=plan.positions,
            attention_mask=plan.mask,  # four-dimensional, so that transformers makes none; the plan has it too
            past_key_values=slab,
            use_cache=True,
            logits_to_keep=plan.newest,
            packed=plan,
        )
        slab.advance()
        return out.logits[0]

    def _append(self, logits: torch.Tensor, requests: Sequence[TurnRequest]) -> None:
        """Draw the next token of each request from logits [B, V]."""
        temperatures = [request.params.temperature for request in requests]
        uniforms = [request.rng.random() for request in requests]
        tokens, logprobs = draw(logits, temperatures, uniforms)
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            request.sampled.append(token)
            request.logprobs.append(logprob)
        self.stats.decoded_tokens += len(requests)

    def _let_go(self, first: int) -> None:
        """Answer the finished turns from row ``first`` on."""
        for row in range(len(self._active) - 1, first - 1, -1):
            ended = self._active[row].ended(self._codec)
            if self._active[row].cancelled or ended is not None:
                self._release(row, ended)

    def _release(self, row: int, ended: tuple[Finish, str | None] | None) -> None:
        """Answer the turn in ``row``, keep its cache for the next turn, and close the gap it leaves."""
        slab, request = self._slab, self._active[row]
        assert slab is not None
        if not request.cancelled and ended is not None:
            known = (request.ids + request.sampled)[: slab.lengths[row]]
            self.stats.kv_evictions += self._store.keep_turn(request.session, known, slab.save(row))
            request.answer(*ended, self.version)
        last = len(self._active) - 1
        if row != last:
            slab.move(last, row)
            self._active[row] = self._active[last]
        self._active.pop()

    def _abort(self, waiting: deque[TurnRequest], error: SamplerError) -> None:
        """End every turn with ``error``, wherever it stands."""
        joining = [request for one in self._joining for request in (one.request, *one.sharers)]
        for request in (*self._active, *joining, *(request for request, _ in self._sharing), *waiting):
            request.fail(error)
        waiting.clear()
        self._active, self._joining, self._sharing, self._slab = [], [], [], None

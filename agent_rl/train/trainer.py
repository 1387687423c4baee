"""The embedded trainer: warm-up, then rollouts and updates in turn, with checkpoints, evaluation and resume."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_rl.algo.explain import start_line
from agent_rl.algo.objective import Objective
from agent_rl.algo.weights import constant_weight_warning
from agent_rl.config.schema import RunConfig
from agent_rl.errors import TrainingError
from agent_rl.evaluation.result import drop_later
from agent_rl.models import resolve_model_path
from agent_rl.rollout.assemble import (
    make_codec,
    make_spec,
    make_tools,
)
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.record import write_records
from agent_rl.rollout.tool_client import ToolClient
from agent_rl.samplers.make import make_policy_sampler
from agent_rl.train.alarm import CollapseAlarm
from agent_rl.train.checkpoint import pin_checkpoints, save_checkpoint
from agent_rl.train.collect import collect_groups, too_many_failures
from agent_rl.train.console import nothing_learnt, progress, step_line
from agent_rl.train.evaluate import due_label, evaluate_at
from agent_rl.train.interrupt import InterruptFlag
from agent_rl.train.metrics import MetricsLog
from agent_rl.train.order import ItemOrder, usable_items
from agent_rl.train.policy import Policy
from agent_rl.train.run_dir import RunDir
from agent_rl.train.step import step_records, step_updates, training_sequences
from agent_rl.train.update import UpdateSettings
from agent_rl.train.warmup import OracleSampler, oracle_trajectories, supervised_epochs, supervised_step

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """``step``: RL steps done in all. ``interrupted``: ended early by Ctrl-C, with a checkpoint."""

    run_dir: Path
    step: int
    interrupted: bool = False


class Trainer:
    """State of one run. ``step`` counts finished RL steps; -1 before the warm-up is over."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        task: Any,
        policy: Policy,
        tokenizer: Any,
        log: Log,
        tool_schemas: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.config, self.run_dir, self.task, self.policy = config, run_dir, task, policy
        self.tokenizer, self.log = tokenizer, log
        self.objective = Objective(config.algo, config.rollout.max_response_tokens)
        self.codec = make_codec(config, policy.model, tokenizer, tool_schemas)
        self.sampler = make_policy_sampler(config, resolve_model_path(config.model.path), policy.model, self.codec)
        self.metrics = MetricsLog(run_dir.path, config.logging, config.model_dump(mode="json"), log)
        self.alarm = CollapseAlarm(config.alarm) if config.alarm.enabled else None
        self.step = -1
        self.checkpointed = -1
        self.checkpoint_s = 0.0  # spent on checkpoints since the last line of metrics
        usable = usable_items(task, self.codec, config.rollout.max_prompt_tokens, log)
        self.order = ItemOrder(usable, config.seed)
        self.settings = UpdateSettings(
            temperature=config.rollout.temperature or 1.0,
            max_batch_tokens=config.train.max_batch_tokens,
            logprob_chunk_tokens=config.train.logprob_chunk_tokens,
            drop_uniform_groups=config.train.drop_uniform_groups_from_batch,
        )
        log(start_line(config.algo))
        warning = constant_weight_warning(config.algo.token_weight)
        if warning:
            log(f"warning: {warning}")

    def resume(self, start: Any) -> None:
        from agent_rl.train.checkpoint import load_checkpoint

        load_checkpoint(start, self.policy)
        self.step = self.checkpointed = start.step
        self.sampler.policy_updated(start.step)
        drop_later(self.run_dir.path / "eval", start.step)
        dropped = self.metrics.rewind(start.step)
        if self.alarm is not None:
            self.alarm.replay(self.metrics.lines("train"))
        self.log(
            f"resuming {self.config.run_dir} after step {start.step}"
            + (f"; {dropped} later lines of metrics.jsonl dropped, their steps are done again" if dropped else "")
        )

    def close(self) -> None:
        self.sampler.close()
        self.metrics.close()

    # ------------------------------------------------------------ phases

    async def run(self, interrupt: InterruptFlag, *, rl: bool) -> TrainResult:
        async with make_tools(self.config) as tools:
            spec = make_spec(
                self.config,
                self.task,
                self.codec,
                self.sampler,
                tools,
                temperature=self.config.rollout.temperature,
            )
            finished = await interrupt.guard(self._phases(spec, tools, interrupt, rl=rl))
        if not finished and self.step >= 0:
            self._checkpoint()
            self.log(f"stopped after step {self.step}; the same command goes on from there")
        elif not finished:
            self.log("stopped in the warm-up, of which nothing is kept; the same command begins it again")
        return TrainResult(self.run_dir.path, max(self.step, 0), interrupted=not finished)

    async def _phases(self, spec: RolloutSpec, tools: ToolClient, interrupt: InterruptFlag, *, rl: bool) -> None:
        if self.step < 0:
            if self.config.warmup.traces:
                await self._warmup(spec, interrupt)
            self.step = 0
            if self.config.warmup.traces:
                self._checkpoint()
        if not rl:
            return
        self._freeze_reference()
        await self._evaluate_if_due(spec)  # also of a run that was stopped in the evaluation of its last step
        first = self.step + 1
        for step in range(first, self.config.train.steps + 1):
            await self._step(step, spec)
            interrupt.check()
            if step < self.config.train.steps:
                await self._evaluate_if_due(spec)
        if self.step < self.config.train.steps:
            raise TrainingError(f"steps {first} to {self.config.train.steps} were due, but none was done")
        self._checkpoint()
        await self._evaluate_if_due(spec)

    async def _warmup(self, spec: RolloutSpec, interrupt: InterruptFlag) -> None:
        settings = self.config.warmup
        if settings.traces > len(self.order.items):
            self.log(f"warmup.traces={settings.traces}, but there are {len(self.order.items)} training questions")
        items = self.order.take(0, min(settings.traces, len(self.order.items)), label="warmup")
        with progress("demonstrations", len(items), "traces", self.log) as advance:
            oracle = OracleSampler(spec)
            traces = await oracle_trajectories(items, replace(spec, sampler=oracle), on_done=advance)
        batches = supervised_epochs(len(traces), settings.epochs, settings.batch_size, self.config.seed)
        with progress("warm-up", len(batches), "updates", self.log) as advance:
            for index, batch in enumerate(batches):
                found = supervised_step(
                    self.policy,
                    [traces[place] for place in batch],
                    lr=settings.lr,
                    max_batch_tokens=self.config.train.max_batch_tokens,
                    chunk_tokens=self.config.train.logprob_chunk_tokens,
                )
                self.metrics.write("warmup", index + 1 - len(batches), found)
                advance()
                await asyncio.sleep(0)  # lets Ctrl-C in between two updates
                interrupt.check()
        self.sampler.policy_updated(0)
        self.log(f"warm-up: {len(traces)} demonstrations, {len(batches)} updates, last loss {found['warmup/loss']:.3f}")

    async def _step(self, step: int, spec: RolloutSpec) -> None:
        began = time.perf_counter()
        config = self.config
        groups, found = await collect_groups(config, spec, self.order, step, self.log)
        rollout_s = time.perf_counter() - began
        broken = too_many_failures(step, groups, config.rollout.max_failed_fraction)
        if broken is not None:
            self._checkpoint()  # the steps before this one were good
            raise TrainingError(
                f"{broken}. A checkpoint of step {self.step} is written: mend the cause and give the same command to "
                "go on"
            )
        self.sampler.release_memory()
        sequences, shaping = training_sequences(groups, self.objective, seed=config.seed)
        found |= shaping
        trained = [sequence for sequence in sequences.values() if sequence is not None]
        found |= step_updates(self.policy, self.objective, trained, config.train, self.settings, step=step)
        self.step = step
        self.sampler.policy_updated(step)
        found |= self._sampler_metrics(rollout_s)
        if step % config.train.save_trajectories_every_steps == 0:
            write_records(self.run_dir.trajectories(step), step_records(groups, sequences, self.codec, step=step))
        found |= {
            "time/rollout_s": rollout_s,
            "time/step_s": time.perf_counter() - began,
            "time/checkpoint_s": self.checkpoint_s,
        }
        self.checkpoint_s = 0.0
        warnings = self.alarm.observe(found) if self.alarm is not None else []
        found |= self.alarm.metrics() if self.alarm is not None else {}
        # Before the checkpoint, and with no await since the update: a run that is killed or stopped at any point
        # then has a line for every step of its checkpoint, and resuming drops the lines of later ones.
        self.metrics.write("train", step, found)
        self.log(step_line(step, config.train.steps, found))
        if (nothing := nothing_learnt(found)) is not None:
            self.log(nothing)
        if step % config.train.checkpoint_every_steps == 0:
            self._checkpoint()
        if warnings:
            self._sound_alarm(warnings)

    def _sound_alarm(self, warnings: Sequence[str]) -> None:
        """Warn, keep the checkpoints from before and one of now, and end the run where that is asked for."""
        for warning in warnings:
            self.log(f"alarm: {warning}")
        self._checkpoint()
        pin_checkpoints(self.run_dir.path)
        where = f"the checkpoints in {self.run_dir.path / 'checkpoints'} are kept"
        if self.config.alarm.stop:
            raise TrainingError(
                f"stopped after step {self.step} by the collapse alarm (alarm.stop=true): {warnings[0]}. {where}; "
                "mend the settings and start a new run, or go on with alarm.stop=false"
            )
        self.log(f"alarm: {where}; alarm.stop=true would have ended the run here")

    def _sampler_metrics(self, rollout_s: float) -> dict[str, float]:
        stats = self.sampler.take_stats()
        return {
            "sampler/decoded_tokens_per_s": stats.decoded_tokens / rollout_s,
            "sampler/prefilled_tokens": float(stats.prefilled_tokens),
            "sampler/reused_tokens": float(stats.reused_tokens),
            "sampler/shared_prompt_tokens": float(stats.shared_prompt_tokens),
            "sampler/mean_batch": stats.decoded_tokens / max(stats.decode_passes, 1),
            "rollout/kv_evictions": float(stats.kv_evictions),
            "rollout/reprefilled_tokens": float(stats.reprefilled_tokens),
        }

    def _checkpoint(self) -> None:
        if self.checkpointed == self.step:
            return
        began = time.perf_counter()
        save_checkpoint(
            self.run_dir.path, self.step, self.policy, self.tokenizer, keep=self.config.train.keep_checkpoints
        )
        self.checkpointed = self.step
        self.checkpoint_s += time.perf_counter() - began

    def _freeze_reference(self) -> None:
        """The reference is the policy as RL began: kept in the run directory, so that a resumed run has it."""
        if not self.objective.needs_reference or self.policy.adapter is not None:
            if self.objective.needs_reference:
                self.policy.freeze_reference()
            return
        if self.step == 0:
            self.policy.freeze_reference()
            self.run_dir.save_reference(self.policy)
        else:
            self.policy.reference = self.run_dir.load_reference(self.config.model)

    async def _evaluate_if_due(self, spec: RolloutSpec) -> None:
        label = due_label(self.config.eval, self.step, self.config.train.steps)
        if label is not None:
            await evaluate_at(
                self.config, spec, self.run_dir.path, label=label, step=self.step, metrics=self.metrics, log=self.log
            )
            self.sampler.take_stats()

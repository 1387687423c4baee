"""The embedded trainer: warm-up, then rollouts and updates in turn, with checkpoints, evaluation and resume."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.algo.explain import start_line
from agent_rl.algo.objective import Objective
from agent_rl.algo.weights import constant_weight_warning
from agent_rl.config.schema import RunConfig
from agent_rl.errors import TrainingError
from agent_rl.evaluation.compare import compare, describe_difference, save_comparison
from agent_rl.evaluation.result import EvalResult, drop_later, load, save
from agent_rl.evaluation.run import choose_items, describe, evaluate
from agent_rl.rollout.assemble import (
    make_codec,
    make_spec,
    make_tools,
)
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.groups import Group
from agent_rl.rollout.record import trajectory_record, write_records
from agent_rl.rollout.tool_client import ToolClient
from agent_rl.train.alarm import CollapseAlarm
from agent_rl.train.batch import TrainSequence
from agent_rl.train.checkpoint import pin_checkpoints, save_checkpoint
from agent_rl.train.collect import collect_groups
from agent_rl.train.console import progress, step_line
from agent_rl.train.interrupt import InterruptFlag
from agent_rl.train.metrics import MetricsLog
from agent_rl.train.order import ItemOrder
from agent_rl.train.policy import Policy
from agent_rl.train.run_dir import RunDir
from agent_rl.train.step import step_updates, training_sequences
from agent_rl.train.update import UpdateSettings
from agent_rl.train.warmup import OracleSampler, oracle_trajectories, supervised_epochs, supervised_step
from tasks.base import TaskItem

if TYPE_CHECKING:
    from agent_rl.samplers.hf import HFSampler

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
        from agent_rl.samplers.hf import HFSampler

        self.config, self.run_dir, self.task, self.policy = config, run_dir, task, policy
        self.tokenizer, self.log = tokenizer, log
        self.objective = Objective(config.algo, config.rollout.max_response_tokens)
        self.codec = make_codec(config, policy.model, tokenizer, tool_schemas)
        self.sampler: HFSampler = HFSampler(policy.model, self.codec, max_batch=config.sampler.max_batch)
        self.metrics = MetricsLog(run_dir.path, config.logging, config.model_dump(mode="json"), log)
        self.alarm = CollapseAlarm(config.alarm) if config.alarm.enabled else None
        self.step = -1
        self.checkpointed = -1
        self.checkpoint_s = 0.0  # spent on checkpoints since the last line of metrics
        self.order = ItemOrder(self._usable(task.items("train")), config.seed)
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

    def _usable(self, items: Sequence[TaskItem]) -> list[TaskItem]:
        """Items whose prompt fits (verl-project/verl#3936: dropped at load with numbers, never cut)."""
        limit = self.config.rollout.max_prompt_tokens
        usable, first = [], ""
        for item in items:
            length = len(self.codec.render(self.task.messages(item)))
            if length <= limit:
                usable.append(item)
            elif not first:
                first = f"first, {item.id}: {length} > {limit}"
        dropped = len(items) - len(usable)
        if dropped:
            self.log(f"{dropped} of {len(items)} questions are left out: prompt too long in tokens ({first})")
        if not usable:
            raise TrainingError(
                f"no training question is usable ({len(items)} read, {dropped} too long); "
                f"see task.data and rollout.max_prompt_tokens={limit}"
            )
        return usable

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
        if self.config.eval.before and self.step == 0:  # a run that goes on later is no longer "before"
            await self._evaluate(spec, "before")
        await self._evaluate_if_due(spec)  # a run that was stopped in the evaluation of its last step
        first = self.step + 1
        for step in range(first, self.config.train.steps + 1):
            await self._step(step, spec)
            interrupt.check()
            await self._evaluate_if_due(spec)
        if self.step < self.config.train.steps:
            raise TrainingError(f"steps {first} to {self.config.train.steps} were due, but none was done")
        self._checkpoint()
        if self.config.eval.after:
            await self._evaluate(spec, "after")

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
        self._check_failures(step, groups, found)
        sequences, shaping = training_sequences(groups, self.objective, seed=config.seed)
        found |= shaping
        trained = [sequence for sequence in sequences.values() if sequence is not None]
        found |= step_updates(self.policy, self.objective, trained, config.train, self.settings, step=step)
        self.step = step
        self.sampler.policy_updated(step)
        found |= self._sampler_metrics(rollout_s)
        if step % config.train.save_trajectories_every_steps == 0:
            self._save_trajectories(step, groups, sequences)
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
        if found.get("rollout/turns_mean") and not found["rollout/searches_mean"] and not found.get("reward/answered"):
            self.log(
                "warning: no trajectory of this step called a tool or answered, so there is nothing to learn from: the "
                "model does not know the tags. Warm it up (warmup.traces), or begin from a model that does"
            )
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

    def _check_failures(self, step: int, groups: Sequence[Group], found: dict[str, float]) -> None:
        failed = found["rollout/failed"] / found["rollout/trajectories"]
        if failed > self.config.rollout.max_failed_fraction:
            broken = next(t for group in groups for t in group.trajectories if not t.scored)
            reason = broken.failure.message if broken.failure else str(broken.stop_reason)
            self._checkpoint()  # the steps before this one were good
            raise TrainingError(
                f"step {step}: {failed:.0%} of the rollouts were broken (rollout.max_failed_fraction="
                f"{self.config.rollout.max_failed_fraction:g}); first: {reason}. A checkpoint of step {self.step} is "
                "written: mend the cause and give the same command to go on"
            )

    def _sampler_metrics(self, rollout_s: float) -> dict[str, float]:
        stats = self.sampler.take_stats()
        return {
            "sampler/decoded_tokens_per_s": stats.decoded_tokens / rollout_s,
            "sampler/prefilled_tokens": float(stats.prefilled_tokens),
            "sampler/reused_tokens": float(stats.reused_tokens),
            "sampler/shared_prompt_tokens": float(stats.shared_prompt_tokens),
            "sampler/mean_batch": stats.decoded_tokens / max(stats.decode_passes, 1),
        }

    def _save_trajectories(
        self, step: int, groups: Sequence[Group], sequences: dict[str, TrainSequence | None]
    ) -> None:
        def records() -> Any:
            for group in groups:
                for trajectory in group.trajectories:
                    sequence = sequences[trajectory.session]
                    yield trajectory_record(
                        trajectory,
                        self.codec,
                        step=step,
                        split="train",
                        advantage=None if sequence is None else sequence.advantage,
                        weights=None if sequence is None else sequence.weights,
                        trainer_logprobs=None if sequence is None else sequence.trainer_logprobs,
                    )

        write_records(self.run_dir.trajectories(step), records())

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
        every = self.config.eval.every_steps
        if every and 0 < self.step < self.config.train.steps and self.step % every == 0:
            await self._evaluate(spec, f"step_{self.step:06d}")

    async def _evaluate(self, spec: RolloutSpec, label: str) -> EvalResult:
        folder = self.run_dir.path / "eval"
        saved = load(folder, label)
        if saved is not None and saved.summary["step"] == self.step:
            return saved  # done before the run was stopped
        result = await evaluate(
            self.config,
            spec,
            choose_items(self.task, self.config.eval.split, self.config.eval.questions, self.config.eval.seed),
            label=label,
            step=self.step,
            log=self.log,
            partial=folder / f".{label}.partial.jsonl",
        )
        self.sampler.take_stats()
        ems = {m: result.summary[m]["em"]["mean"] for m in ("greedy", "sampled") if m in result.summary}
        self.metrics.write("eval", self.step, {f"{mode}_em": em for mode, em in ems.items()})
        save(result, folder)
        self.log(describe(result))
        before = load(folder, "before")
        if label == "after" and before is not None:
            comparison = compare(before, result)
            save_comparison(comparison, folder)
            for name, found in comparison.items():
                self.log(describe_difference(name, found))
        return result

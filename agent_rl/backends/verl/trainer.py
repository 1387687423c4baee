"""verl's synchronous trainer, with our advantages, loss, evaluation, metrics and files where it leaves room."""

from __future__ import annotations

import asyncio
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from agent_rl.algo.explain import start_line
from agent_rl.algo.objective import Objective
from agent_rl.backends.verl.columns import COUNTS, Row, record_weights, row_columns
from agent_rl.backends.verl.groups import gather, updates_of_rows
from agent_rl.backends.verl.loss import objective_loss
from agent_rl.backends.verl.published import publish
from agent_rl.backends.verl.report import step_metrics
from agent_rl.backends.verl.sampler import VerlSampler
from agent_rl.backends.verl.signals import Stopped, stop_asked
from agent_rl.config.schema import RunConfig, VerlBackend
from agent_rl.errors import TrainingError
from agent_rl.evaluation.result import drop_later
from agent_rl.rollout.assemble import make_spec, make_task, make_tools
from agent_rl.rollout.distant_codec import codec_of
from agent_rl.rollout.groups import Group
from agent_rl.rollout.record import write_records
from agent_rl.train.alarm import CollapseAlarm
from agent_rl.train.batch import TrainSequence
from agent_rl.train.checkpoint import pin_checkpoints
from agent_rl.train.collect import drop_uniform, too_many_failures
from agent_rl.train.console import nothing_learnt, step_line
from agent_rl.train.evaluate import due_label, evaluate_at
from agent_rl.train.metrics import MetricsLog
from agent_rl.train.policy import learning_rate
from agent_rl.train.run_dir import RunDir
from agent_rl.train.step import step_records, training_sequences
from agent_rl.train.update import Mismatch


def log(line: str) -> None:
    print(line, flush=True)


class AgentTrainer(PPOTrainerSync):
    """Lives in one Ray process. ``config``: verl's, with ours under ``agent_rl``."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.run = RunConfig.model_validate_json(config.agent_rl.run)
        assert isinstance(self.run.backend, VerlBackend)
        self.backend = self.run.backend
        self.run_dir = RunDir(Path(self.run.run_dir))
        self.objective = Objective(self.run.algo, self.run.rollout.max_response_tokens)
        self.task = make_task(self.run)
        self.codec = codec_of(config.agent_rl.model_path, self.run, json.loads(config.agent_rl.tool_schemas))
        self.metrics = MetricsLog(self.run_dir.path, self.run.logging, self.run.model_dump(mode="json"), log)
        self.alarm = CollapseAlarm(self.run.alarm) if self.run.alarm.enabled else None
        self.saved = -1
        self.checkpoint_s = 0.0
        # of the step under way
        self.groups: list[Group] = []
        self.sequences: dict[str, TrainSequence | None] = {}
        self.of_rows: list[TrainSequence | None] = []
        self.updates: list[int] = []
        self.rates: list[float] = []
        self.found: dict[str, float] = {}
        log(start_line(self.run.algo))

    def close(self) -> None:
        self.metrics.close()

    # ------------------------------------------------------------ verl's hooks

    def _setup(self) -> None:
        super()._setup()
        loss = partial(
            objective_loss,
            algo=self.run.algo.model_dump_json(),
            max_response_tokens=self.run.rollout.max_response_tokens,
        )
        self.actor_rollout_wg.set_loss_fn(loss)
        step = self.saved = self.global_steps
        drop_later(self.run_dir.path / "eval", step)
        dropped = self.metrics.rewind(step)
        if step:
            if self.alarm is not None:
                self.alarm.replay(self.metrics.lines("train"))
            log(
                f"resuming {self.run.run_dir} after step {step}"
                + (f"; {dropped} later lines of metrics.jsonl dropped, their steps are done again" if dropped else "")
            )

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        began = time.perf_counter()
        batch = super().step(metrics, timing_raw)
        self._finish_step(self.global_steps, metrics, timing_raw, time.perf_counter() - began)
        return batch

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Rows in the order in which verl's workers cut them: rank by rank, update by update."""
        config = self.run
        wanted = config.train.prompts_per_step * config.rollout.group_size
        if len(batch) != wanted:
            raise TrainingError(
                f"step {self.global_steps}: {len(batch)} of {wanted} rollouts came back: see verl's log"
            )
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        fields = [getattr(field, "data", field) for field in data["extra_fields"]]
        groups, trajectories = gather(fields, min_group=config.rollout.min_group)
        broken = too_many_failures(self.global_steps, groups, config.rollout.max_failed_fraction)
        if broken is not None:
            raise TrainingError(f"{broken}. Mend the cause and give the same command to go on from step {self.saved}")
        self.found = {}
        if config.algo.group_filter.kind == "drop_uniform":
            self.found["filter/uniform_groups_dropped"] = float(drop_uniform(groups))
        self.groups = groups
        self.sequences, shaping = training_sequences(groups, self.objective, seed=config.seed)
        self.found |= shaping
        of_rows = [self.sequences[trajectory.session] for trajectory in trajectories]
        updates = updates_of_rows(of_rows, updates=config.train.updates_per_rollout)
        order = self._order(updates, [tag["seq_len"] for tag in batch.tags])
        batch.reorder(order)
        self.of_rows, self.updates = [of_rows[row] for row in order], [updates[row] for row in order]
        return batch

    def _order(self, updates: list[int], lengths: list[int]) -> list[int]:
        ranks = self.backend.gpus // self.backend.sequence_parallel
        of_rank: list[list[int]] = [[] for _ in range(ranks)]
        for update in sorted(set(updates)):
            rows = [row for row, its in enumerate(updates) if its == update]
            load = calculate_workload(torch.tensor([lengths[row] for row in rows], dtype=torch.int64))
            for rank, part in enumerate(get_seqlen_balanced_partitions(load, k_partitions=ranks, equal_size=True)):
                of_rank[rank] += [rows[place] for place in part]
        return [row for rows in of_rank for row in rows]

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Our advantages, and beside each row what the loss needs to know of the whole optimiser batch."""
        names = ["response_mask", "old_log_probs", "rollout_log_probs", "entropy"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        masks, olds, rollouts, entropies = (list(data[name].unbind()) for name in names)
        rows = [
            Row(mask, old, entropy, sequence, update)
            for mask, old, entropy, sequence, update in zip(
                masks, olds, entropies, self.of_rows, self.updates, strict=True
            )
        ]
        self.rates = self._rates()
        columns = row_columns(rows, self.objective, self.rates)
        record_weights(rows, self.objective)
        mismatch = Mismatch()
        for row, rollout in zip(rows, rollouts, strict=True):
            if row.sequence is not None:
                chosen = row.mask.bool()
                mismatch.differences.append((row.old_logprobs[chosen] - rollout[chosen]).float())
        self.found |= mismatch.metrics()
        columns["returns"] = columns["advantages"]  # for verl's own statistics
        fields = {
            name: torch.stack(values) if name == COUNTS else torch.nested.as_nested_tensor(values, layout=torch.jagged)
            for name, values in columns.items()
        }
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
        )

    def _rates(self) -> list[float]:
        """The learning rate of each update; 0, which our optimiser takes as no step, where nothing has a gradient."""
        count, steps = self.run.train.updates_per_rollout, self.run.train.steps
        rates = []
        for update in range(count):
            members = [s for s, its in zip(self.of_rows, self.updates, strict=True) if its == update and s is not None]
            signal = any(s.trained and (s.advantage != 0 or self.objective.needs_reference) for s in members)
            place = (self.global_steps - 1) * count + update
            rates.append(learning_rate(self.run.train.optim, place, steps * count) if signal else 0.0)
        return rates

    def _save_checkpoint(self) -> None:
        if self.saved == self.global_steps:
            return
        began = time.perf_counter()
        super()._save_checkpoint()
        publish(
            self.run_dir.path,
            self.global_steps,
            prompt_format=self.run.model.prompt_format,
            keep=self.run.train.keep_checkpoints,
        )
        self.saved = self.global_steps
        self.checkpoint_s += time.perf_counter() - began

    def _validate(self) -> dict[str, float]:
        """Our evaluation where one is due. verl takes what is returned for metrics, and wants some at the start."""
        label = due_label(self.run.eval, self.global_steps, self.run.train.steps)
        if label is not None:
            asyncio.run(self._evaluate(label))
        return {"agent_rl/evaluated": float(label is not None)}

    # ------------------------------------------------------------ ours

    async def _evaluate(self, label: str) -> None:
        """In this process, over verl's rollout replicas, which hold the weights of the last step."""
        async with make_tools(self.run) as tools:
            spec = make_spec(
                self.run,
                self.task,
                self.codec,
                VerlSampler(self.get_llm_client(), self.codec),
                tools,
                temperature=self.run.rollout.temperature,
            )
            await evaluate_at(
                self.run,
                spec,
                self.run_dir.path,
                label=label,
                step=self.global_steps,
                metrics=self.metrics,
                log=log,
                engine=f"verl {self.backend.rollout_engine}",
            )

    def _finish_step(self, step: int, metrics: dict[str, Any], timing: dict[str, float], seconds: float) -> None:
        """The step's line and records; then what may end the run. Before verl saves a checkpoint of the step."""
        train = self.run.train
        found = step_metrics(self.objective, self.groups, self.rates, metrics, timing) | self.found
        found["rollout/dropped_groups"] -= self.found.get("filter/uniform_groups_dropped", 0.0)
        found |= {"time/step_s": seconds, "time/checkpoint_s": self.checkpoint_s}
        self.checkpoint_s = 0.0
        if not math.isfinite(found["objective/grad_norm"]):
            raise TrainingError(f"the gradient norm of step {step} is {found['objective/grad_norm']}")
        if step % train.save_trajectories_every_steps == 0:
            write_records(
                self.run_dir.trajectories(step), step_records(self.groups, self.sequences, self.codec, step=step)
            )
        warnings = self.alarm.observe(found) if self.alarm is not None else []
        found |= self.alarm.metrics() if self.alarm is not None else {}
        self.metrics.write("train", step, found)
        log(step_line(step, train.steps, found))
        if (nothing := nothing_learnt(found)) is not None:
            log(nothing)
        for warning in warnings:
            log(f"alarm: {warning}")
        if warnings:
            self._save_checkpoint()
            pin_checkpoints(self.run_dir.path)
            if self.run.alarm.stop:
                raise TrainingError(f"stopped after step {step} by the collapse alarm (alarm.stop=true): {warnings[0]}")
        if stop_asked(self.run_dir.path):
            self._save_checkpoint()
            raise Stopped

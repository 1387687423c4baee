"""One training step in a process of its own, for its time and its peak memory: a job on stdin, figures on stdout."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from agent_rl.algo.objective import Objective
from agent_rl.bench.plain_step import plain_accumulate
from agent_rl.config.schema import RunConfig
from agent_rl.models import resolve_model_path
from agent_rl.train.batch import TrainSequence
from agent_rl.train.policy import Policy, load_model
from agent_rl.train.update import UpdateSettings, accumulate


def work(job: dict[str, Any]) -> dict[str, float]:
    """``way`` (ours or plain) on ``sequences``.

    With ``gradients``, a file, they are written there instead of an optimiser step, computed in ``exact`` (float64)
    or in the configuration's dtype.
    """
    config = RunConfig.model_validate(job["config"])
    if config.backend.kind == "embedded" and config.backend.threads:
        torch.set_num_threads(config.backend.threads)
    model, _ = load_model(resolve_model_path(config.model.path), config.model)
    if job["way"] == "plain":
        model.set_attn_implementation("sdpa")
    if job["exact"]:
        model = model.double()
    policy = Policy(model, config.model, config.train.optim, compiled=config.train.compile)
    # A reference model costs each way the same; leaving it out makes differences weigh more.
    algo = config.algo.model_copy(update={"kl": config.algo.kl.model_copy(update={"beta": 0.0})})
    objective = Objective(algo, config.rollout.max_response_tokens)
    temperature = config.rollout.temperature or 1.0
    settings = UpdateSettings(
        temperature=temperature,
        max_batch_tokens=config.train.max_batch_tokens,
        logprob_chunk_tokens=config.train.logprob_chunk_tokens,
        drop_uniform_groups=False,
    )

    def sum_gradients(sequences: list[TrainSequence]) -> float:
        if job["way"] == "plain":
            return plain_accumulate(policy, objective, sequences, rows=job["rows"], temperature=temperature)
        return accumulate(policy, objective, sequences, settings)["objective/loss"]

    sequences = [TrainSequence(sampler_logprobs=[0.0] * len(one["ids"]), **one) for one in job["sequences"]]
    if job["gradients"] is not None:
        from safetensors.torch import save_file

        loss = sum_gradients(sequences)
        save_file(policy.gradients(), job["gradients"])
        return {"loss": loss}
    sum_gradients(sequences[:4])  # AdamW's moments and the kernels' set-up belong to no step
    policy.step(0.0)
    wall, cpu = time.perf_counter(), time.process_time()
    loss = sum_gradients(sequences)
    policy.step(0.0)  # its norm waits for a GPU
    return {
        "loss": loss,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": peak_mb(policy.device),
    }


def peak_mb(device: torch.device) -> float:
    """Highest memory so far: of the GPU, or of this process (its own: getrusage would count the parent's too)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # bytes on macOS


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no figure
    print(json.dumps(work(json.load(sys.stdin))), file=answer, flush=True)

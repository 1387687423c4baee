"""What a run needs of memory, in round numbers, and whether this machine has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_rl.config.schema import RunConfig, VerlBackend
from agent_rl.errors import UsageError

GIB = 2**30
# fp32 master weight, fp32 gradient, two fp32 moments of AdamW
UPDATE_BYTES, FROZEN_BYTES, ADAM_BYTES = 16, 4, 8
# Ray's object store and its daemons, Python and torch in each of verl's processes
HOST_BASE_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes. ``gpu_weights`` on each GPU during the update, without activations; ``gpu_rollout`` weights of the rollout
    engine on each GPU, without KV cache; ``host`` on each node."""

    parameters: int
    gpu_weights: int
    gpu_rollout: int
    host: int


def count_parameters(model_config: Any) -> int:
    """Parameters of a causal language model, counted on a model without storage."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    return sum(parameter.numel() for parameter in model.parameters())


def memory_need(config: RunConfig, backend: VerlBackend, parameters: int) -> MemoryNeed:
    """FSDP shares weights, gradients and moments out over all GPUs; the reference is a second, frozen copy.

    LoRA trains a small share, for which nothing is counted. With ``backend.offload`` weights and moments wait in host
    memory and visit the GPU in turn.
    """
    lora = config.model.lora is not None
    trained = (FROZEN_BYTES if lora else UPDATE_BYTES) * parameters
    reference = FROZEN_BYTES * parameters if config.algo.kl.beta > 0 and not lora else 0
    rollout_bytes = 4 if config.model.dtype == "float32" else 2
    shared = (trained + reference) // backend.gpus
    on_host = shared * backend.gpus_per_node if backend.offload else 0
    on_gpu = (trained - (0 if lora else ADAM_BYTES * parameters)) // backend.gpus if backend.offload else shared
    return MemoryNeed(parameters, on_gpu, rollout_bytes * parameters // backend.rollout_gpus, HOST_BASE_BYTES + on_host)


def check_memory(need: MemoryNeed, backend: VerlBackend, *, gpu_bytes: int | None, host_bytes: int) -> None:
    """Raise UsageError where it cannot fit. ``gpu_bytes``: of one GPU; None where this machine has none to ask."""
    if need.host > host_bytes:
        raise UsageError(
            f"too little memory: this machine has {_gib(host_bytes)} free, and the run needs about {_gib(need.host)}"
            + (" (backend.offload=true keeps weights and optimiser state there)" if backend.offload else "")
            + "; use a larger machine or a smaller model"
        )
    if gpu_bytes is None:
        return
    wanted = {
        f"the update (weights, gradients and optimiser of {need.parameters / 1e9:.2f} B parameters over {backend.gpus} "
        "GPUs)": (need.gpu_weights, gpu_bytes, "more GPUs, backend.offload=true or model.lora"),
        "the rollout engine's weights": (
            need.gpu_rollout,
            int(gpu_bytes * backend.rollout_memory_fraction),
            "a larger backend.rollout_memory_fraction or more backend.rollout_gpus",
        ),
    }
    for what, (needed, there, remedy) in wanted.items():
        if needed > there:
            raise UsageError(
                f"too little GPU memory: {what} need {_gib(needed)} on each GPU, which has {_gib(there)}; use {remedy}"
            )


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"

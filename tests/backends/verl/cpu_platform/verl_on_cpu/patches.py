"""Where verl takes a GPU for granted: the engine's registry, the process group's backend, pinned memory."""

from __future__ import annotations

from typing import Any

import verl.utils.distributed as distributed
import verl.workers.engine.fsdp.transformer_impl as fsdp
from verl.workers.engine import EngineRegistry

engines = EngineRegistry._engines["language_model"]
for backend in ("fsdp", "fsdp2"):
    engines[backend].setdefault("cpu", fsdp.FSDPEngineWithLMHead)

_initialize = distributed.initialize_global_process_group_ray
_offload = fsdp.CPUOffloadPolicy


def _with_gloo(timeout_second: Any = None, backend: str | None = None) -> Any:
    return _initialize(timeout_second, backend or "gloo")


def _unpinned(pin_memory: bool = True) -> Any:
    return _offload(pin_memory=False)


distributed.initialize_global_process_group_ray = _with_gloo
fsdp.CPUOffloadPolicy = _unpinned

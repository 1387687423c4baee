"""Which device and compute dtype a machine is good for."""

from __future__ import annotations

import torch

from agent_rl.errors import ConfigError


def choose_device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("model.device=cuda, but torch sees no CUDA device; use model.device=cpu or auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto``: bfloat16 where the device computes in it, float32 elsewhere (emulated bf16 is slower)."""
    if dtype != "auto":
        return torch.float32 if dtype == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    capabilities = torch.cpu.get_capabilities()
    has_bf16 = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16")
    return torch.bfloat16 if has_bf16 else torch.float32

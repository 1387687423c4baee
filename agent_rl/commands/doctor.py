"""`agent-rl doctor`: what this machine offers, what it can isolate, and whether a tool server answers."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command, composed

PACKAGES = (
    "agent-rl",
    "torch",
    "transformers",
    "sentence-transformers",
    "faiss-cpu",
    "faiss-gpu-cu12",
    "hydra-core",
)
HEALTH_TIMEOUT_S = 3.0


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "doctor",
        run=run,
        composes="doctor",
        summary="show versions, processor, disk, what can isolate code, and whether the tool server answers",
        examples=["agent-rl doctor", "agent-rl doctor tools.url=http://127.0.0.1:8901"],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)
    for name, value in _facts(config.tools.url):
        print(f"{name:22} {value}")


def _facts(url: str) -> list[tuple[str, str]]:
    import torch

    from retrieval_index.fetch import default_cache_dir

    facts = [("python", f"{platform.python_version()} on {platform.platform()}")]
    facts += [(package, _version(package)) for package in PACKAGES]
    processor = torch.cpu.get_capabilities()
    fast = [name for name in ("avx2", "avx512_bf16", "amx_bf16") if processor.get(name)]
    facts.append(("processor", f"{os.cpu_count()} cores; {', '.join(fast) or 'no vector extension known to torch'}"))
    facts.append(("torch threads", str(torch.get_num_threads())))
    facts.append(("gpu", torch.cuda.get_device_name() if torch.cuda.is_available() else "none"))
    cache = default_cache_dir()
    facts.append(("cache folder", f"{cache} ({_free_gib(cache):.1f} GiB free)"))
    facts.append(("working directory", f"{Path.cwd()} ({_free_gib(Path.cwd()):.1f} GiB free)"))
    facts += _isolation()
    facts.append(("tool server", _tool_server(url)))
    return facts


def _isolation() -> list[tuple[str, str]]:
    """What the python tool can shut the model's code in with; each is tried, not looked up."""
    if sys.platform != "linux":
        return [("python isolation", f"none on {sys.platform}: Linux only")]
    from tools.python.isolation import probe

    found = probe()
    facts = [(f"python {name}", "works" if reason is None else f"no: {reason}") for name, reason in found.items()]
    best = next((name for name, reason in found.items() if reason is None), None)
    verdict = f"isolated by {best}" if best else "will not start without python.allow_unsafe=true"
    return [*facts, ("python tool", verdict)]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _free_gib(path: Path) -> float:
    """Free space where ``path`` is or would be made."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / 2**30


def _tool_server(url: str) -> str:
    import httpx

    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=HEALTH_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError as error:
        return f"none at {url} ({type(error).__name__}); start one: agent-rl serve-tools"
    except httpx.InvalidURL as error:
        return f"tools.url={url} is not an address ({error})"
    return f"{url} is ready" if answer.is_success else f"{url} answers {answer.status_code}: {answer.text[:200]}"

"""`agent-rl doctor`: what this machine offers, and what that means here; of a run, what looks wrong in it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import socket
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent_rl.commands.parsing import add_command, add_overrides, composed

PACKAGES = {
    "agent-rl": "this toolkit",
    "torch": "models and updates",
    "transformers": "models",
    "sentence-transformers": "encoders of the search index",
    "faiss-cpu": "the search index; exactly one of faiss-cpu and faiss-gpu-cu12 should be there",
    "faiss-gpu-cu12": "the search index on a GPU",
    "hydra-core": "settings",
    "verl": "backend=verl (extra verl)",
    "vllm": "the sampler of backend=verl (extra vllm)",
    "pyserini": "BM25 (extra bm25)",
    "duckdb": "the sql tool (extra sql)",
    "wandb": "logging.wandb=true (extra wandb)",
    "trackio": "logging.trackio=true (extra trackio)",
}
HEALTH_TIMEOUT_S = 3.0
JAVA_TIMEOUT_S = 10.0
ROOM_GIB = 5.0  # the demo's models, index and checkpoints

Fact = tuple[str, str, str]  # name, what was found, what it means here


class _RunsOrOverrides(argparse.Action):
    """Words without ``=`` are run directories, the others settings."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        namespace.runs = [Path(word) for word in values if "=" not in word]
        namespace.overrides = [word for word in values if "=" in word]


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "doctor",
        run=run,
        composes=None,  # its words may be run directories: added below
        summary="show what this machine offers and what that means here; of a run, what looks wrong in it",
        examples=[
            "agent-rl doctor",
            "agent-rl doctor tools.url=http://127.0.0.1:8901",
            "agent-rl doctor runs/demo",
        ],
    )
    add_overrides(
        parser,
        metavar="RUN_DIR | key=value",
        action=_RunsOrOverrides,
        default=[],
        help="run directories to look at, or settings in Hydra's syntax",
    )
    parser.set_defaults(runs=[], composes="doctor")


def run(args: argparse.Namespace) -> None:
    if args.runs:
        from agent_rl.errors import UsageError

        if args.overrides:
            raise UsageError(f"doctor looks at runs or at the machine: {args.overrides[0]} has no effect on a run")
        for path in args.runs:
            _examine(path)
        return
    config = composed(args)
    for name, value, meaning in _facts(config.tools.url):
        print(f"{name:22} {value}" + (f"\n{'':24}{meaning}" if meaning else ""))


def _examine(path: Path) -> None:
    from agent_rl.report.diagnosis import diagnose
    from agent_rl.report.run_data import read_run

    data = read_run(path)
    findings = diagnose(data)
    train = data.metrics.get("train", [])
    print(f"{path}: {len(train)} steps" + ("" if findings else "; nothing looks wrong"))
    for note in data.notes:
        print(f"  note: {note}")
    for finding in findings:
        print(f"  {finding.name}: {finding.evidence}")
        print(textwrap.indent(textwrap.fill(finding.meaning, 110), "    "))


def _facts(url: str) -> list[Fact]:
    import torch

    from retrieval_index.fetch import default_cache_dir

    facts: list[Fact] = [("python", f"{platform.python_version()} on {platform.platform()}", "")]
    facts += [(package, _version(package), meaning) for package, meaning in PACKAGES.items()]
    processor = torch.cpu.get_capabilities()
    fast = [name for name in ("avx2", "avx512_bf16", "amx_bf16") if processor.get(name)]
    half = any("bf16" in name for name in fast)
    facts.append(
        (
            "processor",
            f"{os.cpu_count()} cores; {', '.join(fast) or 'no vector extension known to torch'}",
            "model.dtype=auto computes in bfloat16 on it" if half else "model.dtype=auto computes in float32 on it",
        )
    )
    facts.append(("torch threads", str(torch.get_num_threads()), "backend.threads sets another number"))
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        facts.append(("gpu", ", ".join(gpus), "model.device=auto takes the first; backend=verl all"))
    else:
        facts.append(("gpu", "none", "training runs on the processor: small models, see docs/demo.md"))
    facts.append(("java", _java(), "only BM25 needs it (21 or later)"))
    for name, place in (("cache folder", default_cache_dir()), ("working directory", Path.cwd())):
        free = _free_gib(place)
        meaning = f"less than the {ROOM_GIB:g} GiB that models and checkpoints want" if free < ROOM_GIB else ""
        facts.append((name, f"{place} ({free:.1f} GiB free)", meaning))
    facts += _isolation()
    facts.append(_port(url))
    facts.append(("tool server", *_tool_server(url)))
    return facts


def _isolation() -> list[Fact]:
    """What the python tool can shut the model's code in with; each is tried, not looked up."""
    if sys.platform != "linux":
        return [("python isolation", f"none on {sys.platform}: Linux only", "the python tool refuses to start")]
    from tools.python.isolation import probe

    found = probe()
    facts: list[Fact] = [
        (f"python {name}", "works" if reason is None else f"no: {reason}", "") for name, reason in found.items()
    ]
    best = next((name for name, reason in found.items() if reason is None), None)
    verdict = f"isolated by {best}" if best else "will not start without python.allow_unsafe=true"
    return [*facts, ("python tool", verdict, "what the model's code cannot reach: docs/sandbox.md")]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _java() -> str:
    path = shutil.which("java")
    if path is None:
        return "none"
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run ({type(error).__name__})"
    lines = (said.stderr + said.stdout).splitlines()
    return f"{lines[0] if lines else 'says nothing'} ({path})"


def _free_gib(path: Path) -> float:
    """Free space where ``path`` is or would be made."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / 2**30


def _port(url: str) -> Fact:
    """Whether a server could be started where ``url`` points."""
    try:
        host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except (OSError, ValueError) as error:
        return ("tools.url", f"its port cannot be opened here ({error})", "a server has it, or it is another machine's")
    return ("tools.url", f"port {port} is free", "agent-rl serve-tools can take it")


def _tool_server(url: str) -> tuple[str, str]:
    import httpx

    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=HEALTH_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError as error:
        found = f"none at {url} ({type(error).__name__}); start one: agent-rl serve-tools"
        return found, "or tools.autostart=true starts one for the run"
    except httpx.InvalidURL as error:
        return f"tools.url={url} is not an address ({error})", ""
    if answer.is_success:
        return f"{url} is ready", ""
    return f"{url} answers {answer.status_code}: {answer.text[:200]}", "train and eval wait for it, then stop"

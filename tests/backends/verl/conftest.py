"""Tests of backend=verl. They run where verl is installed (`make test-verl`), on the CPU platform beside this file."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WITHOUT_VERL = {"test_environment.py", "test_columns.py"}

try:
    metadata.version("verl")
    INSTALLED = True
except metadata.PackageNotFoundError:
    INSTALLED = False

if INSTALLED:  # before anything imports verl
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "verl_on_cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(HERE / "cpu_platform"))

# The tiny model, the index and the servers of the embedded backend's whole runs.
_spec = importlib.util.spec_from_file_location("whole_run_fixtures", ROOT / "tests" / "train" / "runs" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
DATA = _shared.DATA
_FIXTURES = (
    "index_folder",
    "serve",
    "model_folder",
    "warm_folder",
    "metrics",
    "steps_done",
    "trajectories",
    "settings",
)
for _name in _FIXTURES:
    globals()[_name] = getattr(_shared, _name)

# What a machine without a GPU needs of verl; found by trial (fewer logical CPUs, or more storage units, hang).
CPU_OVERRIDES = (
    "trainer.device=cpu",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.model.use_remove_padding=false",
    "ray_kwargs.ray_init.num_cpus=16",
    "+ray_kwargs.ray_init.num_gpus=1",
    "+ray_kwargs.ray_init.include_dashboard=false",
    "+ray_kwargs.ray_init.object_store_memory=300000000",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
)


@pytest.fixture
def verl_settings(settings: Callable[..., dict[str, Any]], warm_folder: Path) -> Callable[..., dict[str, Any]]:
    """As ``settings``, for backend=verl on the CPU platform, from the warmed-up tiny model."""

    def make(run_dir: Path, url: str, **changes: Any) -> dict[str, Any]:
        base = settings(
            run_dir,
            url,
            model={"path": str(warm_folder), "device": "auto"},
            algo={"kl": {"beta": 0.001}, "name": "tr_grpo"},
            train={"checkpoint_every_steps": 2},
        )
        base["backend"] = {
            "kind": "verl",
            "rollout_engine": "agent_rl_hf",
            "agent_workers": 1,
            "overrides": list(CPU_OVERRIDES),
        }
        return _shared.merged(base, changes)

    return make


@pytest.fixture
def merge() -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    return _shared.merged


@pytest.fixture
def to_arguments() -> Callable[[dict[str, Any]], list[str]]:
    return arguments


def arguments(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as the command line takes them."""
    import json

    found = []
    for key, value in values.items():
        if isinstance(value, dict):
            found += arguments(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            found.append(f"{prefix}{key}=[{','.join(json.dumps(item) for item in value)}]")
        elif isinstance(value, str):
            found.append(f"{prefix}{key}={json.dumps(value)}")
        else:
            found.append(f"{prefix}{key}={json.dumps(value)}")
    return found


@pytest.fixture
def start_cli() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `agent-rl ...` as a process of its own; what is still there at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(*args: str, **environment: str) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(ROOT), str(HERE / "cpu_platform")])
        child = subprocess.Popen(
            [sys.executable, "-m", "agent_rl.cli", *args],
            env=os.environ | {"PYTHONPATH": paths, "RAY_DEDUP_LOGS": "0"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.append(child)
        return child

    yield start
    for child in running:
        if child.poll() is None:
            child.kill()
        child.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if INSTALLED:
        return
    skip = pytest.mark.skip(reason="verl is not installed in this environment; `make test-verl` runs these")
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name not in WITHOUT_VERL:
            item.add_marker(skip)

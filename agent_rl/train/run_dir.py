"""A run's directory: its configuration, what it may be resumed with, and where its files lie."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock, Timeout

from agent_rl.config.schema import ModelConfig, RunConfig
from agent_rl.errors import ArtifactError, ConfigError, UsageError
from agent_rl.train.checkpoint import Checkpoint, find_checkpoints
from agent_rl.train.policy import Policy, on_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What a resumed run may change without becoming another run.
_FREE_TO_CHANGE = ("tools.", "eval.", "alarm.", "logging.", "backend.", "sampler.", "resume", "run_dir")
_FREE_KEYS = (
    "train.checkpoint_every_steps",
    "train.keep_checkpoints",
    "train.save_trajectories_every_steps",
    "train.max_batch_tokens",
    "train.compile",
    "train.logprob_chunk_tokens",
    "rollout.max_in_flight",
    "rollout.retries",
    "rollout.max_failed_fraction",
    "rollout.rollout_timeout_s",
)


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path

    def trajectories(self, step: int) -> Path:
        return self.path / "trajectories" / f"step_{step:06d}.jsonl.gz"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Two processes must not write one run. Raises UsageError where another holds it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"run_dir={self.path}: it cannot be made ({error.strerror})") from error
        lock = FileLock(str(self.path / ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(
                f"run_dir={self.path} is in use by another process; wait for it or give another run_dir"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def prepare(self, config: RunConfig, log: Callable[[str], None]) -> Checkpoint | None:
        """Check ``config`` against what lies here; the checkpoint to go on from, or None for a fresh start."""
        saved = self.path / "config.yaml"
        if config.resume == "never" and saved.exists():
            raise UsageError(
                f"run_dir={self.path} holds a run already and resume=never; give another run_dir, or resume=auto"
            )
        if config.resume == "must" and not saved.exists():
            raise UsageError(f"resume=must, but run_dir={self.path} holds no run")
        if saved.exists():
            self._check_same(config, yaml.safe_load(saved.read_text(encoding="utf-8")))
        checkpoints = find_checkpoints(self.path)
        if saved.exists() and not checkpoints:
            log(f"{self.path} holds a run without a checkpoint: it starts again from the beginning")
            for name in ("metrics.jsonl", "trajectories", "eval", "tensorboard", "reference"):
                self._remove(name)
        partial = saved.with_suffix(".yaml.partial")
        partial.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
        os.replace(partial, saved)
        return checkpoints[-1] if checkpoints else None

    def _remove(self, name: str) -> None:
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _check_same(self, config: RunConfig, saved: dict[str, Any]) -> None:
        before, now = _flat(saved), _flat(config.model_dump(mode="json"))
        odd = [
            f"{key}: the run has {before.get(key)!r}, now {now.get(key)!r}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key) and not key.startswith(_FREE_TO_CHANGE) and key not in _FREE_KEYS
        ]
        if odd:
            raise ConfigError(
                f"run_dir={self.path} holds a run with another configuration:\n  "
                + "\n  ".join(odd)
                + "\ngive the same values to go on with it, or another run_dir to start a new run"
            )

    def save_reference(self, policy: Policy) -> None:
        folder, partial = self.path / "reference", self.path / ".reference.partial"
        shutil.rmtree(partial, ignore_errors=True)
        policy.model.save_pretrained(str(partial))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)

    def load_reference(self, config: ModelConfig) -> PreTrainedModel:
        folder = self.path / "reference"
        if not folder.is_dir():
            raise ArtifactError(f"{folder} is missing: the KL of this run cannot be computed without its reference")
        from transformers import AutoModelForCausalLM

        from agent_rl import attention
        from agent_rl.train.precision import choose_device, choose_dtype

        device = choose_device(config.device)
        model = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=choose_dtype(config.dtype, device),
            attn_implementation=attention.register(),
        )
        return on_device(model, device).requires_grad_(False)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat

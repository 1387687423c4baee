"""Checkpoints: everything a run needs to go on exactly where it was. The manifest is written last."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.errors import ArtifactError
from agent_rl.train.policy import Policy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MANIFEST = "manifest.json"
PINNED = "pinned"  # a checkpoint that later ones do not push out
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    step: int

    @property
    def model_dir(self) -> Path:
        """The weights as transformers loads them, with the tokenizer."""
        return self.path / "model"


def save_checkpoint(
    run_dir: Path, step: int, policy: Policy, tokenizer: PreTrainedTokenizerBase, *, keep: int
) -> Checkpoint:
    """Write ``checkpoints/step_NNNNNN`` atomically, then drop the oldest beyond ``keep``."""
    from safetensors.torch import save_file

    folder = run_dir / "checkpoints"
    target = folder / f"step_{step:06d}"
    partial = folder / f".step_{step:06d}.partial"
    for stale in folder.glob(".step_*.partial"):
        shutil.rmtree(stale)
    try:
        partial.mkdir(parents=True)
        policy.save_pretrained(str(partial / "model"))
        tokenizer.save_pretrained(str(partial / "model"))
        save_file(policy.state(), str(partial / "trainer.safetensors"))
        sizes = {
            str(file.relative_to(partial)): file.stat().st_size for file in sorted(partial.rglob("*")) if file.is_file()
        }
        manifest = {"format": FORMAT, "step": step, "files": sizes}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        os.replace(partial, target)
    except BaseException:
        # A full disk must not stay full because of half a checkpoint.
        shutil.rmtree(partial, ignore_errors=True)
        raise
    drop_old_checkpoints(run_dir, keep)
    return Checkpoint(target, step)


def drop_old_checkpoints(run_dir: Path, keep: int) -> None:
    """Drop all but the last ``keep`` and those that are pinned."""
    for old in find_checkpoints(run_dir)[:-keep]:
        if not (old.path / PINNED).exists():
            shutil.rmtree(old.path)


def find_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Complete checkpoints, oldest first; one without its manifest or with a short file does not count."""
    found = []
    for path in (run_dir / "checkpoints").glob("step_*"):
        manifest = _manifest(path)
        if manifest is not None:
            found.append(Checkpoint(path, int(manifest["step"])))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def pin_checkpoints(run_dir: Path) -> None:
    """Keep every checkpoint there is, whatever is saved later."""
    for checkpoint in find_checkpoints(run_dir):
        (checkpoint.path / PINNED).touch()


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        complete = all((path / name).stat().st_size == size for name, size in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return manifest if complete else None


def load_checkpoint(checkpoint: Checkpoint, policy: Policy) -> None:
    from safetensors.torch import load_file

    manifest = _manifest(checkpoint.path)
    if manifest is None or manifest["format"] != FORMAT:
        raise ArtifactError(f"{checkpoint.path} is not a complete checkpoint of format {FORMAT}")
    policy.load_state(load_file(str(checkpoint.path / "trainer.safetensors"), device=str(policy.device)))


def find_model(run_dir: Path, checkpoint: str) -> tuple[str, str, int]:
    """(model folder, label, step) of ``latest``, a step number, or a path to a checkpoint or model folder."""
    found = find_checkpoints(run_dir)
    if checkpoint == "latest" or checkpoint.isdigit():
        wanted = [c for c in found if checkpoint == "latest" or c.step == int(checkpoint)]
        if not wanted:
            have = ", ".join(str(c.step) for c in found) or "none"
            raise ArtifactError(f"checkpoint={checkpoint}: not in {run_dir}/checkpoints (steps there: {have})")
        return str(wanted[-1].model_dir), f"step_{wanted[-1].step:06d}", wanted[-1].step
    path = Path(checkpoint)
    folder = path / "model" if (path / "model").is_dir() else path
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        what = "no model in it (no config.json)" if path.is_dir() else "no such folder"
        raise ArtifactError(f"checkpoint={checkpoint}: {what}; give latest, a step, or a path")
    return str(folder), path.name, 0

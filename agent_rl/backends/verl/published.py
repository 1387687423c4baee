"""verl's checkpoints as ours: `checkpoints/step_NNNNNN` with the model as transformers loads it, and a manifest.

verl writes `verl_checkpoints/global_step_N` (shards, optimiser, data loader). Published are hard links to its Hugging
Face folder, so that `agent-rl eval`, `rollout` and `report` find a run of either backend in one place.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from agent_rl.backends.verl.translate import CHECKPOINTS
from agent_rl.errors import ArtifactError
from agent_rl.train.checkpoint import MANIFEST, Checkpoint, drop_old_checkpoints, find_checkpoints
from agent_rl.train.policy import PROMPT_FORMAT_FILE

FORMAT = "verl"


def verl_folder(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS / f"global_step_{step}"


def publish(run_dir: Path, step: int, *, prompt_format: str, keep: int) -> Checkpoint:
    """Publish what verl just saved for ``step``; then drop all but the last ``keep``, verl's part included.

    Under LoRA verl saves no Hugging Face weights: the folder then holds tokenizer and configuration alone
    (docs/scaling.md says how to merge). The manifest is written last, so that a half-written checkpoint does not count.
    """
    source = verl_folder(run_dir, step) / "actor" / "huggingface"
    if not source.is_dir():
        raise ArtifactError(f"{source}: verl saved no model there; is run_dir on a file system that every node shares?")
    target = run_dir / "checkpoints" / f"step_{step:06d}"
    partial = target.with_name(f".{target.name}.partial")
    for stale in (partial, target):
        shutil.rmtree(stale, ignore_errors=True)
    (partial / "model").mkdir(parents=True)
    for file in source.rglob("*"):
        if file.is_file():
            link = partial / "model" / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, link)
    (partial / "model" / PROMPT_FORMAT_FILE).write_text(json.dumps({"prompt_format": prompt_format}))
    sizes = {str(file.relative_to(partial)): file.stat().st_size for file in partial.rglob("*") if file.is_file()}
    manifest = {"format": FORMAT, "step": step, "files": sizes}
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    os.replace(partial, target)
    drop_old_checkpoints(run_dir, keep)
    _drop_unpublished(run_dir)
    return Checkpoint(target, step)


def _drop_unpublished(run_dir: Path) -> None:
    kept = {verl_folder(run_dir, checkpoint.step).name for checkpoint in find_checkpoints(run_dir)}
    for folder in (run_dir / CHECKPOINTS).glob("global_step_*"):
        if folder.name not in kept:
            shutil.rmtree(folder)


def resume_folder(run_dir: Path, start: Checkpoint | None) -> Path | None:
    """verl's folder to go on from; None for a fresh start, also where there is a warm-up's checkpoint (step 0) alone.

    Raises ArtifactError where the run was trained by the embedded backend, or verl's part of the checkpoint is gone.
    """
    if start is None or start.step == 0:
        return None
    if json.loads((start.path / MANIFEST).read_text(encoding="utf-8"))["format"] != FORMAT:
        raise ArtifactError(
            f"{start.path} was written by the embedded backend, which verl cannot go on from; give another run_dir and "
            f"model={start.model_dir}, or backend=embedded"
        )
    folder = verl_folder(run_dir, start.step)
    if not (folder / "actor").is_dir():
        raise ArtifactError(f"{folder} is missing: without it the run cannot go on from {start.path}")
    return folder

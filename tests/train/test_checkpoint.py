"""Checkpoints: exact, atomic, and no more of them than asked for."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from agent_rl.algo.objective import Objective
from agent_rl.errors import ArtifactError
from agent_rl.train.checkpoint import MANIFEST, find_checkpoints, load_checkpoint, save_checkpoint
from agent_rl.train.update import UpdateSettings, update

SETTINGS = UpdateSettings(temperature=1.0, max_batch_tokens=500, logprob_chunk_tokens=64, drop_uniform_groups=True)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def steps(run_dir: Path) -> list[int]:
    return [checkpoint.step for checkpoint in find_checkpoints(run_dir)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_exact(tmp_path: Path, make_policy, make_sequences, grpo, tokenizer, dtype) -> None:
    policy = make_policy(dtype=dtype)
    for seed in range(2):
        update(policy, Objective(grpo()), make_sequences(4, seed=seed), SETTINGS, lr=1e-3)
    saved = save_checkpoint(tmp_path, 12, policy, tokenizer, keep=2)
    assert (saved.step, saved.path.name) == (12, "step_000012")
    (found,) = find_checkpoints(tmp_path)
    assert found == saved
    other = make_policy(dtype=dtype)
    load_checkpoint(found, other)
    assert policy.state().keys() == other.state().keys()
    assert all(torch.equal(value, other.state()[name]) for name, value in policy.state().items())
    assert float(next(value for name, value in other.state().items() if name.startswith("adamw.step"))) == 2.0
    loaded = AutoModelForCausalLM.from_pretrained(found.model_dir, dtype=dtype)
    for name, value in policy.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert not list((tmp_path / "checkpoints").glob(".*")), "nothing half-made is left"


def test_the_newest_are_kept(tmp_path: Path, make_policy, tokenizer) -> None:
    policy = make_policy()
    for step in (0, 9, 10, 11):
        save_checkpoint(tmp_path, step, policy, tokenizer, keep=2)
    assert steps(tmp_path) == [10, 11]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_000010", "step_000011"]


def test_a_million_steps_are_still_in_order(tmp_path: Path, make_policy, tokenizer) -> None:
    for step in (999_999, 1_000_000):
        save_checkpoint(tmp_path, step, make_policy(), tokenizer, keep=2)
    assert steps(tmp_path) == [999_999, 1_000_000]


def spoil_truncate(path: Path) -> None:
    file = path / "trainer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def spoil_delete(path: Path) -> None:
    (path / "model" / "model.safetensors").unlink()


def spoil_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def spoil_half_manifest(path: Path) -> None:
    (path / MANIFEST).write_text((path / MANIFEST).read_text()[:40])


def spoil_empty_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("{}")


SPOILS = [spoil_truncate, spoil_delete, spoil_manifest, spoil_half_manifest, spoil_empty_manifest]


@pytest.mark.parametrize("spoil", SPOILS)
def test_incomplete_checkpoint_does_not_count(tmp_path: Path, make_policy, tokenizer, spoil) -> None:
    policy = make_policy()
    save_checkpoint(tmp_path, 1, policy, tokenizer, keep=5)
    broken = save_checkpoint(tmp_path, 2, policy, tokenizer, keep=5)
    spoil(broken.path)
    assert steps(tmp_path) == [1]
    with pytest.raises(ArtifactError, match="not a complete checkpoint"):
        load_checkpoint(broken, policy)
    save_checkpoint(tmp_path, 2, policy, tokenizer, keep=5)
    assert steps(tmp_path) == [1, 2], "the step is done again over the broken one"


def test_checkpoint_of_another_format_is_refused(tmp_path: Path, make_policy, tokenizer) -> None:
    saved = save_checkpoint(tmp_path, 1, make_policy(), tokenizer, keep=1)
    manifest = json.loads((saved.path / MANIFEST).read_text())
    (saved.path / MANIFEST).write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(ArtifactError, match="format 1"):
        load_checkpoint(saved, make_policy())


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path, make_policy, tokenizer) -> None:
    stale = tmp_path / "checkpoints" / ".step_000003.partial" / "model"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"half")
    save_checkpoint(tmp_path, 4, make_policy(), tokenizer, keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000004"]


@pytest.mark.slow
def test_full_disk_leaves_the_old_checkpoint_and_no_half_one(tmp_path: Path) -> None:
    """The kernel refuses to let a file grow beyond a limit, as a full disk would, in the middle of a write."""
    script = textwrap.dedent(
        """
        import resource, sys
        from pathlib import Path
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
        from agent_rl.config.schema import ModelConfig, OptimConfig
        from agent_rl.testing import tiny_model
        from agent_rl.train.checkpoint import find_checkpoints, save_checkpoint
        from agent_rl.train.policy import Policy

        run_dir = Path(sys.argv[1])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
        policy = Policy(tiny_model(50), ModelConfig(), OptimConfig())
        old = save_checkpoint(run_dir, 1, policy, tokenizer, keep=1)
        size = (old.path / "model" / "model.safetensors").stat().st_size
        for limit in (size // 2, size + 1000):
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            if limit > size:  # let the model through, then fail in the trainer's state, which is larger with moments
                for master in policy._masters:
                    master.grad.fill_(1.0)
                policy.step(1e-3)
            try:
                save_checkpoint(run_dir, 2, policy, tokenizer, keep=1)
                print("saved")
            except Exception:
                print("refused")
            print(sorted(path.name for path in (run_dir / "checkpoints").iterdir()))
            print([checkpoint.step for checkpoint in find_checkpoints(run_dir)])
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused", "['step_000001']", "[1]"] * 2

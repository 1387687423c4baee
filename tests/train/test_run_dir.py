"""A run's directory: one process at a time, and only with the configuration it was begun with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from agent_rl.config.schema import RunConfig
from agent_rl.errors import ArtifactError, ConfigError, UsageError
from agent_rl.train.checkpoint import save_checkpoint
from agent_rl.train.run_dir import RunDir


def config(tmp_path: Path, **changes) -> RunConfig:
    return RunConfig.model_validate({"run_dir": str(tmp_path / "run")} | changes)


def prepared(settings: RunConfig, said: list[str] | None = None):
    run_dir = RunDir(Path(settings.run_dir))
    with run_dir.lock():
        return run_dir.prepare(settings, (said if said is not None else []).append)


class Words:
    """Stands for a tokenizer: only its saving is asked for here."""

    def save_pretrained(self, folder: str) -> None:
        Path(folder, "tokenizer.json").write_text("{}")


def test_fresh_run_saves_its_configuration(tmp_path: Path) -> None:
    settings = config(tmp_path, seed=3)
    assert prepared(settings) is None
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert RunConfig.model_validate(saved) == settings


def test_last_complete_checkpoint_is_gone_on_from(tmp_path: Path, make_policy) -> None:
    settings = config(tmp_path)
    prepared(settings)
    for step in (4, 8, 12):
        last = save_checkpoint(tmp_path / "run", step, make_policy(), Words(), keep=3)
    (last.path / "trainer.safetensors").unlink()
    found = prepared(settings)
    assert found is not None
    assert found.step == 8


def test_run_without_a_checkpoint_begins_again_with_a_clean_slate(tmp_path: Path) -> None:
    settings, said = config(tmp_path), []
    prepared(settings)
    run = tmp_path / "run"
    (run / "metrics.jsonl").write_text("{}\n")
    for name in ("trajectories", "eval", "reference"):
        (run / name).mkdir()
        (run / name / "old").write_text("old")
    assert prepared(settings, said) is None
    assert "starts again from the beginning" in said[0]
    assert not [name for name in ("metrics.jsonl", "trajectories", "eval", "reference") if (run / name).exists()]


def test_other_configuration_is_refused_with_the_keys_named(tmp_path: Path) -> None:
    prepared(config(tmp_path))
    before = (tmp_path / "run" / "config.yaml").read_text()
    other = config(tmp_path, seed=9, algo={"clip_high": 0.3}, train={"steps": 7})
    with pytest.raises(ConfigError) as caught:
        prepared(other)
    text = str(caught.value)
    for line in ("algo.clip_high: the run has 0.24, now 0.3", "seed: the run has 0, now 9"):
        assert line in text
    assert "train.steps: the run has 100, now 7" in text
    assert "another run_dir" in text
    assert "lr" not in text, "only what differs is named"
    assert (tmp_path / "run" / "config.yaml").read_text() == before


@pytest.mark.parametrize(
    "free",
    [
        {"tools": {"url": "http://127.0.0.1:9"}},
        {"sampler": {"kind": "hf", "max_batch": 3}},
        {"eval": {"questions": 5}},
        {"train": {"checkpoint_every_steps": 1, "max_batch_tokens": 99}},
        {"rollout": {"retries": 0, "max_in_flight": 2}},
        {"resume": "must"},
    ],
)
def test_what_does_not_change_the_run_may_change(tmp_path: Path, free) -> None:
    prepared(config(tmp_path))
    changed = config(tmp_path, **free)
    prepared(changed)
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert RunConfig.model_validate(saved) == changed, "what is saved is what the run goes on with"


def test_resume_never_touches_no_run(tmp_path: Path) -> None:
    prepared(config(tmp_path, resume="never"))
    with pytest.raises(UsageError, match="holds a run already and resume=never"):
        prepared(config(tmp_path, resume="never"))


def test_resume_must_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"resume=must, but run_dir=.*holds no run"):
        prepared(config(tmp_path, resume="must"))


def test_second_process_is_refused_while_the_first_holds_the_run(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    with run_dir.lock():
        pass  # made, and free again
    script = (
        "import sys; from filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(run_dir.path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=r"run_dir=.*/run is in use by another process"), run_dir.lock():
            pass
        other.stdin.close()
    with run_dir.lock():
        pass


def test_run_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"run_dir=.*it cannot be made"), RunDir(tmp_path / "file" / "run").lock():
        pass


def test_reference_is_kept_exactly(tmp_path: Path, make_policy) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    policy = make_policy()
    model = config(tmp_path, model={"dtype": "float32", "device": "cpu"}).model
    with pytest.raises(ArtifactError, match="reference is missing"):
        run_dir.load_reference(model)
    for _ in range(2):  # saved again where a run was stopped right after
        run_dir.save_reference(policy)
    loaded = run_dir.load_reference(model)
    assert not loaded.training
    for name, value in policy.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())

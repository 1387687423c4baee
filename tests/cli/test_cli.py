"""The command line: quick help, one readable message an error, exit codes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from agent_rl.cli import explain, main
from agent_rl.commands import build_parser
from agent_rl.errors import ConfigError, SamplerError, TrainingError, UsageError
from retrieval_index.errors import DiskFull, FetchError, IndexExists, RetrievalError
from tasks.base import TaskDataError
from tools.listen import ServeError


def agent_rl(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_rl.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_answers_in_under_half_a_second() -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        done = agent_rl("--help")
        times.append(time.perf_counter() - start)
        assert done.returncode == 0
        assert "build-index" in done.stdout
    assert min(times) < 0.5  # the best of five: the machine may be busy with something else


def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "build-index",
        "serve-tools",
        "fetch",
        "train",
        "warmup",
        "eval",
        "rollout",
        "watch",
        "report",
        "config",
        "doctor",
    ]
    for command in [[word] for word in words] + [
        ["data", "miniwiki"],
        ["data", "check"],
        ["bench", "sandbox"],
        ["bench", "rollout"],
    ]:
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args([*command, "--help"])
        assert ended.value.code == 0
        assert f"examples:\n  agent-rl {' '.join(command)}" in capsys.readouterr().out


def test_config_faults_end_with_2_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """unslothai/unsloth#10452 (B59): exit 2, path and suggestion."""
    assert main(["train", "algo.clip_hgih=0.28"]) == 2
    text = capsys.readouterr().err
    assert "algo.clip_hgih=0.28: unknown key; did you mean algo.clip_high?" in text
    assert "Traceback" not in text


def test_overrides_may_stand_on_both_sides_of_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "seed=3", "--debug", "train.steps=9"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["seed"], shown["train"]["steps"]) == (3, 9)


@pytest.mark.parametrize("wrong", [["--nonsense"], ["train", "seed=1", "--seed=2"], ["trian"], ["data"], []])
def test_wrong_words_end_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_traceback_comes_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", "no-such-run"]) == 2
    assert capsys.readouterr().err == "agent-rl: no-such-run: no such run directory\n"
    assert main(["report", "no-such-run", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("AGENT_RL_DEBUG", "1")
    assert main(["report", "no-such-run"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (UsageError("x"), 2),
        (TrainingError("x"), 1),
        (SamplerError("x"), 1),
        (RetrievalError("x"), 1),
        (IndexExists("x"), 2),
        (TaskDataError("x"), 1),
        (ServeError("x"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    message, found = explain(error)
    assert found == code
    assert message in ("x", "runs/x: Permission denied")


def test_a_full_disk_is_named_even_inside_other_errors() -> None:
    message, code = explain(OSError(errno.ENOSPC, "No space left on device", "runs/a/model.safetensors"))
    assert (message.split(";")[0], code) == ("disk full: cannot write runs/a/model.safetensors", 1)
    wrapped = RuntimeError("could not save")
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device", "runs/a/x")
    assert "disk full: cannot write runs/a/x" in explain(wrapped)[0]
    assert "disk full" in explain(RuntimeError("I/O error: No space left on device (os error 28)"))[0]


def test_a_full_disk_keeps_the_words_of_who_knows_what_to_do() -> None:
    known = DiskFull("disk full: no space left under indexes; free some, or choose another `out`")
    known.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert explain(known) == (str(known), 1)
    around = FetchError("cannot fetch minilm")
    around.__cause__ = known
    assert explain(around) == (str(known), 1)


def test_a_terminal_that_cannot_show_a_character_ends_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_rl.cli", "config", "show", "run_dir='é漢'"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"run_dir: \xe9\u6f22" in done.stdout


@pytest.mark.parametrize("command", ["eval", "rollout"])
def test_results_that_could_not_be_stored_are_not_computed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
        assert main([command, f"out={out}"]) == 2
        assert f"out={out}: {tmp_path / 'file'} is a file" in capsys.readouterr().err


def test_an_unforeseen_error_says_how_to_see_more() -> None:
    message, code = explain(KeyError("x"))
    assert code == 1
    assert "unexpected KeyError" in message
    assert "--debug" in message


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent_rl.layout.assert_layout", interrupted)
    assert main(["config", "show"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m agent_rl.cli config keys | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("# the schema's defaults")
    assert done.stderr == ""


def test_config_of_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "serve-tools", "port=0"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["port"] == 0
    assert main(["config", "show", "trian"]) == 2
    assert "they are train, warmup, eval" in capsys.readouterr().err


def test_fetch_lists_and_refuses_unknown_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT_RL_CACHE", str(tmp_path))
    assert main(["fetch"]) == 0
    shown = capsys.readouterr().out
    assert str(tmp_path) in shown
    assert shown.count("(not fetched)") == 3
    assert main(["fetch", "smollm"]) == 2
    assert "known are smollm2-135m, minilm" in capsys.readouterr().err


def test_data_miniwiki_writes_what_data_check_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "wiki"
    assert main(["data", "miniwiki", f"out={out}", "passages=300", "seed=5"]) == 0
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    for name, rows in manifest["rows"].items():
        assert len((out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()) == rows > 0
    capsys.readouterr()
    given = [f"task.data.{split}={out / split}.jsonl" for split in ("train", "dev", "test")]
    assert main(["data", "check", "task.data.kind=jsonl", *given]) == 0
    assert f"test: {manifest['rows']['test']} questions" in capsys.readouterr().out
    assert main(["data", "miniwiki", f"out={out}", "passages=300"]) == 2
    assert "holds a data set already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["wiki"]


def test_data_miniwiki_touches_no_file_of_somebody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.jsonl").write_text("mine")
    assert main(["data", "miniwiki", f"out={tmp_path}", "passages=300"]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
    assert (tmp_path / "train.jsonl").read_text() == "mine"


def test_data_miniwiki_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "train.jsonl"))

    with monkeypatch.context() as patch:
        patch.setattr("tasks.miniwiki.world.World.questions", full)
        assert main(["data", "miniwiki", f"out={tmp_path / 'wiki'}", "passages=300"]) == 1
    assert "disk full" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_data_check_names_the_question_that_cannot_be_won(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "good", "question": "q?", "golden_answers": ["a b"]},
        {"id": "bad", "question": "q?", "golden_answers": ["</answer>"]},
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = [f"task.data.{split}={file}" for split in ("train", "dev", "test")]
    assert main(["data", "check", "task.data.kind=jsonl", *given]) == 1
    text = capsys.readouterr().err
    assert "'bad'" in text
    assert "'good'" not in text


def test_build_index_without_a_corpus_ends_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build-index", f"corpus={tmp_path / 'none.jsonl'}", f"out={tmp_path / 'i'}"]) == 1
    assert "none.jsonl: no such corpus file" in capsys.readouterr().err


def test_serve_tools_without_an_index_says_how_to_build_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-tools", f"index={tmp_path / 'none'}", "port=0"]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_data_check_of_a_file_too_small_to_hold_anything_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"id": "1", "question": "Who?", "golden_answers": ["Ann"]}\n', encoding="utf-8")
    assert main(["data", "check", "task.data.kind=jsonl", f"task.data.train={file}"]) == 0
    text = capsys.readouterr().out
    assert "0 questions" in text
    assert text.endswith("every gold answer scores the maximum\n")


def test_miniwiki_on_disk_has_demonstrations(tmp_path: Path) -> None:
    assert main(["data", "miniwiki", f"out={tmp_path / 'mw'}", "passages=300"]) == 0
    from tasks.search import SearchTask

    files = {split: str(tmp_path / "mw" / f"{split}.jsonl") for split in ("train", "dev", "test")}
    task = SearchTask({"kind": "jsonl", "eval_fraction": 0.2, **files})
    assert task.oracle(task.items("train")[0])[0].text.startswith("<think>")


def test_doctor_tells_what_can_isolate_code(capsys: pytest.CaptureFixture[str]) -> None:
    from tools.python.isolation import probe

    assert main(["doctor", "tools.url=http://127.0.0.1:9"]) == 0
    said = dict(line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines() if line[:7] == "python ")
    found = probe()
    for name, reason in found.items():
        assert said[name] == ("works" if reason is None else f"no: {reason}")
    best = next((name for name, reason in found.items() if reason is None), None)
    assert best is None or said["tool"] == f"isolated by {best}"


def test_serving_python_needs_no_index_and_says_what_cannot_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-tools", "tools=[python]", "port=0", "index=none", "python.preload=[no_such_module]"]) == 2
    assert "python.preload=no_such_module: ModuleNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "seen"), [(None, "128"), ("1024", "1024")])
def test_kernels_are_kept_for_few_shapes_unless_the_user_says_otherwise(
    given: str | None, seen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "to be put back afterwards")
    monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv(name, given)
    assert main(["config", "show", "experiment=demo"]) == 0
    assert os.environ[name] == seen

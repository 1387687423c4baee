"""A user's own task: the documented file, an installed package's, and what can be wrong with one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from agent_rl.cli import main
from agent_rl.config.compose import compose
from agent_rl.errors import ConfigError, UsageError
from agent_rl.rollout.assemble import make_task
from agent_rl.rollout.task_plugin import load_task
from tasks.base import Task

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_task.md"


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The documentation's example as a file in the working directory."""
    code = re.search(r"```python\n# my_task.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert code is not None
    (tmp_path / "my_task.py").write_text(code[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def installed(documented, monkeypatch):
    """The example as an installed package with an entry point."""
    package = documented / "site"
    info = package / "backwards-1.0.dist-info"
    info.mkdir(parents=True)
    (documented / "my_task.py").rename(package / "spelling.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: backwards\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[agent_rl.tasks]\nbackwards = spelling:Backwards\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    yield
    sys.modules.pop("spelling", None)


def test_the_documented_file_is_a_task(documented):
    config = compose("train", ["task=my_task.py:Backwards", "task.settings.upper=true"])
    task = make_task(config)
    assert isinstance(task, Task)
    (item,) = task.items("test")
    assert item.gold == ("OTAMOT",)
    task.validate(item)
    assert task.score(item, "<think><answer>OTAMOT</answer></think><answer>x</answer>").value == 0.0


def test_data_check_takes_it(documented, capsys):
    assert main(["data", "check", "task=my_task.py:Backwards"]) == 0
    assert "train: 3 questions" in capsys.readouterr().out


def test_a_module_and_an_entry_point(installed):
    for path in ("spelling:Backwards", "backwards"):
        task = make_task(compose("train", [f"task={path}"]))
        assert (task.name, task.items("test")[0].gold) == ("backwards", ("otamot",))
    with pytest.raises(ConfigError, match=r"task=bakwards.*did you mean backwards\?"):
        compose("train", ["task=bakwards"])


@pytest.mark.parametrize(
    ("path", "settings", "words"),
    [
        ("my_task.py:Forwards", {}, r"no 'Forwards' \(its classes: .*Backwards"),
        ("other.py:Backwards", {}, "other.py does not exist"),
        ("no_such_module:Task", {}, "no module 'no_such_module'"),
        ("no_such_name", {}, r"no installed package offers this task \(they offer: .*my_task.py:MyTask"),
        ("my_task.py:WORDS", {}, "is a dict, not a class"),
        ("my_task.py:Backwards", {"uper": True}, "does not take them.*uper"),
        ("my_task.py:TaskItem", {"id": 1, "question": "", "gold": ()}, "lacks .*max_score.*validate"),
        ("", {}, "task.path is empty"),
    ],
)
def test_what_is_wrong_is_named(documented, path, settings, words):
    with pytest.raises(UsageError, match=words):
        load_task(path, settings)


def test_a_fault_of_the_tasks_own_file_passes_through(documented):
    (documented / "broken.py").write_text("import json\njson.loads('{')\n", encoding="utf-8")
    with pytest.raises(ValueError, match="property name"):
        load_task("broken.py:X", {})
    (documented / "lacking.py").write_text("import no_such_thing\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        load_task("lacking.py:X", {})


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"task=serch: no such preset; did you mean search\?.*kk, math, plugin, search"
    ):
        compose("train", ["task=serch"])

"""A user's own task, from one file: ``my_task.py:MyTask``, ``my_package.module:MyTask``, or the name of an entry
point."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from agent_rl.config.installed_tasks import installed_tasks
from agent_rl.errors import UsageError
from tasks.base import Task


def load_task(path: str, settings: dict[str, Any]) -> Task:
    """Make the task named by ``path`` with ``settings`` as keyword arguments.

    Raises UsageError where there is no such file, module, class or entry point, where the class does not take the
    settings, or where what it makes lacks a member of ``tasks.base.Task``. What the task's own code raises passes
    through.
    """
    if not path:
        raise UsageError("task.path is empty: write task=my_task.py:MyTask, or the name of an installed task")
    factory = _entry_point(path) if ":" not in path else _attribute(path)
    if not callable(factory):
        raise UsageError(f"task.path={path}: is a {type(factory).__name__}, not a class that makes a task")
    try:
        task = factory(**settings)
    except TypeError as error:
        raise UsageError(f"task.settings={settings}: {path} does not take them: {error}") from error
    lacking = sorted(name for name in _members() if not hasattr(task, name))
    if lacking:
        raise UsageError(f"task.path={path}: what it makes lacks {', '.join(lacking)}; see tasks.base.Task")
    return task


def _members() -> set[str]:
    methods = {name for name in vars(Task) if not name.startswith("_")}
    return methods | set(Task.__annotations__)


def _entry_point(name: str) -> Any:
    tasks = installed_tasks()
    if name not in tasks:
        known = ", ".join(tasks) or "none"
        raise UsageError(
            f"task.path={name}: no installed package offers this task (they offer: {known}); "
            "for a file write task.path=my_task.py:MyTask"
        )
    return tasks[name].load()


def _attribute(path: str) -> Any:
    where, _, name = path.rpartition(":")
    module = _module_of_file(Path(where), path) if where.endswith(".py") else _installed_module(where, path)
    if not hasattr(module, name):
        classes = ", ".join(key for key, value in vars(module).items() if isinstance(value, type)) or "none"
        raise UsageError(f"task.path={path}: {where} has no {name!r} (its classes: {classes})")
    return getattr(module, name)


def _module_of_file(file: Path, path: str) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"task.path={path}: {file} does not exist")
    file = file.resolve()
    # A name of its own, registered: dataclasses and pickle look a class's module up by name.
    name = f"agent_rl_task_{file.stem}_{abs(hash(str(file))):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _installed_module(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"task.path={path}: there is no module {name!r}; a file is written with .py") from error
        raise

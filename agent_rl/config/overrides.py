"""Overrides as typed on the command line, in Hydra's grammar: ``group=preset``, ``dotted.key=value``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.config.faults import Fault, nearest, show
from agent_rl.config.installed_tasks import installed_tasks

# These groups also take a path, a hub id or (task) module:Class in place of a preset: it becomes the section's `path`.
PATH_GROUPS = {"model": "hub", "encoder": None, "corpus": "file", "task": "plugin"}
_LOOKS_LIKE_PATH = re.compile(r"[/\\]|^[.~]|\.(jsonl|gz|zst|json|tsv|parquet)$|\w:[A-Za-z_]\w*$")


@dataclass
class Overrides:
    """``presets``: group -> preset; ``values``: dotted key -> value, in order; ``faults`` of both."""

    presets: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def parse(texts: list[str], presets_of: dict[str, list[str]]) -> Overrides:
    """Sort ``texts`` into presets and values. ``presets_of``: the names that each group has.

    Nothing is raised: what cannot be read is put among the faults, so that all of them are reported together.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    result = Overrides()
    for text in texts:
        try:
            override = parser.parse_override(text)
            value = override.value()
        except HydraException as error:
            reason = str(error).splitlines()[0]
            remedy = "write key=value; put a value with spaces, commas or brackets in quotes: 'key=\"a, b\"'"
            result.faults.append(Fault("", None, f"cannot read the override {text!r} ({reason}); {remedy}"))
            continue
        key = override.key_or_group
        if not key:
            result.faults.append(Fault("", None, f"cannot read the override {text!r}; write key=value"))
            continue
        if text.startswith(("+", "~")):
            remedy = f"write {key}=null" if text.startswith("~") else f"write {key}=..."
            result.faults.append(Fault(key, None, f"{text[0]} is not used here, since no key can come or go; {remedy}"))
        elif override.is_sweep_override():
            typed = text.partition("=")[2]
            remedy = f"one run takes one value (a list is written {key}=[...])"
            result.faults.append(Fault(key, typed, f"is a sweep; {remedy}"))
        elif override.package is not None:
            typed = text.partition("=")[2]
            remedy = f"a preset goes where its group is: write {key}={typed}"
            result.faults.append(Fault(f"{key}@{override.package}", typed, f"takes no package; {remedy}"))
        elif key in presets_of and not isinstance(value, dict):
            _choose(result, key, value, presets_of[key])
        else:
            result.values |= _leaves(key, value)
    return result


def _leaves(key: str, value: Any) -> dict[str, Any]:
    """``key={a: 1, b: {c: 2}}`` is two dotted keys: it changes those of the section, and leaves the others."""
    if not isinstance(value, dict) or not value:
        return {key: value}
    leaves: dict[str, Any] = {}
    for name, inner in value.items():
        leaves |= _leaves(f"{key}.{name}", inner)
    return leaves


def _choose(result: Overrides, group: str, value: Any, presets: list[str]) -> None:
    """A preset of the group; or, where the group takes one, a path or a hub id."""
    name = str(value)
    if value is None and group == "experiment":
        result.presets[group] = "null"
    elif name in presets:
        result.presets[group] = name
    elif group in PATH_GROUPS and (
        _LOOKS_LIKE_PATH.search(name) or Path(name).exists() or (group == "task" and name in installed_tasks())
    ):
        if (preset := PATH_GROUPS[group]) is not None:
            result.presets[group] = preset
        result.values[f"{group}.path"] = name
    else:
        known = [*presets, *(installed_tasks() if group == "task" else ())]
        near = nearest(name, known)
        hint = f"; did you mean {near}?" if near else ""
        also = "; a path or a hub id has a / in it" if group in PATH_GROUPS else ""
        also = "; a task of your own is written my_task.py:MyTask" if group == "task" else also
        text = f"no such preset{hint} (presets: {', '.join(known)}{also})"
        result.faults.append(Fault(group, show(value), text))


def apply(values: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Set each dotted key in ``values`` (nested), ``kind`` keys first.

    A new ``kind`` empties its section: what was there belongs to the kind that was left.
    """
    for key in sorted(overrides, key=lambda key: not key.endswith(".kind")):
        *parents, name = key.split(".")
        at = values
        for parent in parents:
            if not isinstance(at.get(parent), dict):
                at[parent] = {}
            at = at[parent]
        if name == "kind" and at.get("kind") != overrides[key]:
            at.clear()
        at[name] = overrides[key]

"""Finding every fault of a configuration at once, each with its path, its value and a remedy."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from agent_rl.config.schema import Record
from agent_rl.config.sections import branches, dotted_keys, fill_kinds, locate, section_at

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True)
class Fault:
    """One thing wrong: ``path`` is the dotted key ("" for the whole), ``value`` what was given, as text."""

    path: str
    value: str | None
    text: str

    def line(self, origin: Callable[[str], str]) -> str:
        head = self.path if self.value is None else f"{self.path}={self.value}"
        where = origin(self.path) if self.path else ""
        return f"{head}{f' ({where})' if where else ''}: {self.text}" if head else self.text


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of ``words`` that is most like ``word``, or None where none is near."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)), None)


def show(value: Any) -> str:
    """A value as it would be typed in an override, cut at 80 characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def check(record: type[RecordT], values: dict[str, Any]) -> tuple[RecordT | None, list[Fault]]:
    """Validate ``values`` (nested, as from YAML) and return the record, or None and all the faults.

    pydantic runs a record's cross-field checks only when its fields are right. So whatever is found wrong is
    taken out and the rest is validated again, until nothing new appears. A cross-field fault that mentions a
    value already found wrong is not reported: it would speak of a default that nobody asked for.
    """
    fill_kinds(record, values)
    faults: list[Fault] = []
    removed: set[str] = set()
    while True:
        try:
            # JSON mode is strict about numbers, text and booleans, yet takes a list for a tuple.
            whole = record.model_validate_json(json.dumps(values, default=str), strict=True)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        else:
            return (None if faults else whole), faults
        found = list(_faults_of(record, values, errors))
        crossing = [
            fault
            for fault, _ in found
            if fault.value is None and any(re.search(rf"\b{name}\b", fault.text) for name in removed)
        ]
        faults += [fault for fault, _ in found if fault not in faults and fault not in crossing]
        taken_out = [path for _, path in found if _remove(values, path)]
        if not taken_out:
            return None, faults
        removed |= {path[-1] for path in taken_out}


def _faults_of(record: type[Record], values: dict[str, Any], errors: list[Any]) -> Iterator[tuple[Fault, list[str]]]:
    """Each pydantic error as a fault, with the path to take out; several errors of one leaf are joined."""
    by_path: dict[str, list[Any]] = {}
    for error in errors:
        by_path.setdefault(".".join(locate(record, error["loc"])), []).append(error)
    for dotted, group in by_path.items():
        path = dotted.split(".") if dotted else []
        first, value = group[0], _value(values, path)
        if first["type"] == "extra_forbidden":
            for leaf, leaf_value in _leaves(dotted, value):
                yield Fault(leaf, show(leaf_value), _unknown(record, values, path, leaf)), path
        elif first["type"] in ("union_tag_invalid", "union_tag_not_found"):
            kinds = [kind.strip(" '") for kind in first["ctx"].get("expected_tags", "").split(",") if kind]
            given = value.get("kind") if isinstance(value, dict) else value
            yield Fault(f"{dotted}.kind", show(given), _not_one_of(given, kinds)), path
        elif first["type"] == "missing":
            yield Fault(dotted, None, f"needs a value: add {dotted}=..."), path
        elif first["type"] == "value_error":
            yield Fault(dotted, None, str(first["ctx"]["error"])), path
        elif first["type"] == "model_type":
            section = section_at(record, values, path)
            keys = ", ".join(f"{dotted}.{name}" for name in section.model_fields) if section else ""
            yield Fault(dotted, show(value), f"is a section, not a value; its keys: {keys}"), path
        else:
            text = " or ".join(dict.fromkeys(_plain(error) for error in group))
            if first["type"] == "string_type":
                text += f"; to give it as text: {dotted}='\"{show(value)}\"'"
            yield Fault(dotted, show(value), text), path


def _plain(error: Any) -> str:
    if error["type"] == "literal_error":
        choices = [choice.strip(" '") for choice in error["ctx"]["expected"].replace(" or ", ",").split(",")]
        return _not_one_of(error["input"], choices)
    return error["msg"].removeprefix("Input ").replace("should be a valid string", "should be text")


def _not_one_of(given: Any, choices: list[str]) -> str:
    near = nearest(str(given), choices)
    return f"is not one of {', '.join(choices)}" + (f"; did you mean {near}?" if near else "")


def _unknown(record: type[Record], values: dict[str, Any], path: list[str], leaf: str) -> str:
    """What to say of an unknown key: the nearest sibling, the right branch, or the nearest key anywhere."""
    parent, name = path[:-1], path[-1]
    prefix = "".join(f"{part}." for part in parent)
    section = section_at(record, values, parent)
    siblings = list(section.model_fields) if section else []
    everywhere = list(dotted_keys(record))
    if parent:
        holder = section_at(record, values, parent[:-1])
        field = holder.model_fields.get(parent[-1]) if holder else None
        for kind, branch in branches(field).items() if field else ():
            if name in branch.model_fields and branch is not section:
                return f"unknown key here: it belongs to {prefix}kind={kind}; add {prefix}kind={kind}"
    if leaf == ".".join(path) and (near := nearest(name, siblings)):
        return f"unknown key; did you mean {prefix}{near}?"
    same_end = [key for key in everywhere if key.split(".")[-1] == leaf.split(".")[-1]]
    if near := nearest(leaf, same_end) or " or ".join(same_end[:3]) or nearest(leaf, everywhere):
        return f"unknown key; did you mean {near}?"
    return f"unknown key; the keys {f'of {prefix[:-1]}' if parent else 'here'} are {', '.join(siblings)}"


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{prefix}.{name}", inner)
    else:
        yield prefix, value


def _value(values: dict[str, Any], path: list[str]) -> Any:
    at: Any = values
    for name in path:
        at = at.get(name) if isinstance(at, dict) else None
    return at


def _remove(values: dict[str, Any], path: list[str]) -> bool:
    """Take the value at ``path`` out; False where there is none (validating again would find the same)."""
    parent = _value(values, path[:-1])
    if path and isinstance(parent, dict) and path[-1] in parent:
        del parent[path[-1]]
        return True
    return False

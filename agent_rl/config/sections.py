"""Reading the schema itself: which records lie where, and every dotted key that exists.

A *section* is a key whose value is a record. A section may have several branches, told apart by ``kind``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from agent_rl.config.schema import Record


def branches(field: FieldInfo) -> dict[str, type[Record]]:
    """The records that a field may hold, by ``kind`` (by class name where there is none); {} for a leaf."""
    found: dict[str, type[Record]] = {}
    pending: list[Any] = [field.annotation]
    while pending:
        annotation = pending.pop(0)
        if get_origin(annotation) is Annotated:
            pending.insert(0, get_args(annotation)[0])
        elif isinstance(annotation, type) and issubclass(annotation, Record):
            kind = annotation.model_fields.get("kind")
            found[kind.default if kind else annotation.__name__] = annotation
        elif get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
            pending.extend(get_args(annotation))
    return found


def branch_of(field: FieldInfo, value: Any) -> type[Record] | None:
    """The record that ``value`` is meant for: by ``kind``, else the field's default, else the only branch."""
    choices = branches(field)
    if isinstance(value, dict) and value.get("kind") in choices:
        return choices[value["kind"]]
    if isinstance(field.default, Record):
        return type(field.default)
    return next(iter(choices.values())) if len(choices) == 1 else None


def dotted_keys(record: type[Record], prefix: str = "") -> Iterator[str]:
    """Every key of ``record`` and below it, all branches included, sections before their contents."""
    for name, field in record.model_fields.items():
        yield f"{prefix}{name}"
        for branch in branches(field).values():
            yield from dotted_keys(branch, f"{prefix}{name}.")


def fill_kinds(record: type[Record], values: dict[str, Any]) -> None:
    """Write the default ``kind`` into each section that has several branches and was given without one.

    Without it a single override such as ``task.data.passages=300`` would have to repeat ``task.data.kind``.
    """
    for name, field in record.model_fields.items():
        value = values.get(name)
        if not isinstance(value, dict):
            continue
        if field.discriminator and "kind" not in value and isinstance(field.default, Record):
            value["kind"] = field.default.model_dump()["kind"]
        branch = branch_of(field, value)
        if branch is not None:
            fill_kinds(branch, value)


def locate(record: type[Record], loc: tuple[int | str, ...]) -> list[str]:
    """The dotted path of a pydantic error location: union tags and positions inside a leaf are left out."""
    path: list[str] = []
    rest = list(loc)
    at: type[Record] | None = record
    while rest and at is not None:
        name = str(rest.pop(0))
        path.append(name)
        field = at.model_fields.get(name)
        if field is None:
            break
        choices = branches(field)
        if field.discriminator:
            at = choices.get(str(rest.pop(0))) if rest else None
        else:
            at = next(iter(choices.values()), None)
    return path


def section_at(record: type[Record], values: dict[str, Any], path: list[str]) -> type[Record] | None:
    """The record that stands at ``path`` given the present values; None where ``path`` leaves the schema."""
    at: type[Record] | None = record
    value: Any = values
    for name in path:
        field = at.model_fields.get(name) if at is not None else None
        if field is None:
            return None
        value = value.get(name) if isinstance(value, dict) else None
        at = branch_of(field, value)
    return at


def describe_keys(record: type[Record], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted key, default as JSON, meaning or choices) of every leaf, all branches included."""
    for name, field in record.model_fields.items():
        choices = branches(field)
        meaning = field.description or ""
        if not choices:
            default = "(needed)" if field.is_required() else json.dumps(field.default)
            choices_of_leaf = _literals(field.annotation)
            listed = ", ".join(map(str, choices_of_leaf)) if len(choices_of_leaf) > 1 else ""
            yield f"{prefix}{name}", default, meaning or listed
            continue
        if field.default is None:
            yield f"{prefix}{name}", "null", meaning
        for kind, branch in choices.items():
            for key, default, text in describe_keys(branch, f"{prefix}{name}."):
                only = f"kind={kind} only" if len(choices) > 1 and not key.endswith(".kind") else ""
                yield key, default, "; ".join(part for part in (text, only) if part)


def _literals(annotation: Any) -> list[Any]:
    """The values that a ``Literal`` lists, through unions and tuples; [] where there is none."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _literals(part)]

"""`agent-rl config show|keys|explain`: what a command would run with, every key that it knows, and the objective."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.commands.parsing import add_command, add_overrides

if TYPE_CHECKING:
    from agent_rl.config.schema import AlgoConfig


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "config",
        run=run,
        composes=None,
        summary="show the resolved configuration of a command (default: train), all its keys, or the objective",
        examples=[
            "agent-rl config show",
            "agent-rl config show algo=tr_grpo_literal train.steps=5",
            "agent-rl config show build-index encoder=e5_base_v2",
            "agent-rl config keys serve-tools",
            "agent-rl config explain algo=tr_grpo",
            "agent-rl config explain algo=tr_grpo algo.clip_on=weighted_ratio",
        ],
    )
    parser.add_argument(
        "action",
        choices=["show", "keys", "explain"],
        help="show: resolved values; keys: defaults and meanings; explain: the objective: formula, w over p, source",
    )
    add_overrides(parser)


def run(args: argparse.Namespace) -> None:
    from agent_rl.config.commands import COMMANDS
    from agent_rl.config.compose import compose, resolved_yaml
    from agent_rl.config.sections import describe_keys
    from agent_rl.errors import UsageError

    command, overrides = "train", args.overrides
    if overrides and "=" not in overrides[0]:
        command, overrides = overrides[0], overrides[1:]
    if command not in COMMANDS:
        raise UsageError(
            f"config {args.action} {command}: not a command with a configuration; they are {', '.join(COMMANDS)}"
        )
    if args.action == "keys":
        if overrides:
            raise UsageError("config keys lists the keys of the schema and takes no overrides")
        print(f"# the schema's defaults; a preset may set another: agent-rl config show {command}")
        for key, default, meaning in describe_keys(COMMANDS[command][1]):
            print(f"{key} = {default}{meaning and f'  # {meaning}'}")
        return
    record = compose(command, overrides, args.config_dir)
    if args.action == "show":
        print(resolved_yaml(record), end="")
        return
    algo: AlgoConfig | None = getattr(record, "algo", None)
    if algo is None:
        raise UsageError(f"config explain {command}: has no objective; try agent-rl config explain algo=tr_grpo")
    print("\n".join(_explain(algo, args.config_dir)))


def _explain(algo: AlgoConfig, config_dir: Path | None) -> list[str]:
    from agent_rl.algo.explain import curve_lines, formula, start_line

    lines = [start_line(algo), "", *_source(algo, config_dir), "", *formula(algo)]
    curve = curve_lines(algo)
    return [*lines, *(["", "w over the token's probability p:", *curve] if curve else [])]


def _source(algo: AlgoConfig, config_dir: Path | None) -> list[str]:
    """The comment at the head of the preset's file, and where this objective departs from it."""
    from agent_rl.config.compose import CONFIG_DIR, compose

    folders = [CONFIG_DIR, *([config_dir] if config_dir else [])]
    files = [file for folder in folders if (file := folder / "algo" / f"{algo.name}.yaml").is_file()]
    if not files:
        return [f"no preset algo/{algo.name}.yaml: its source is not on record"]
    head = []
    for line in files[-1].read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        head.append(line.removeprefix("#").strip())
    preset = compose("train", [f"algo={algo.name}"], config_dir)
    changed = _changes(getattr(preset, "algo").model_dump(), algo.model_dump())  # noqa: B009 - a Record to mypy
    return head + ([f"changed from the preset: {', '.join(changed)}"] if changed else [])


def _changes(before: dict[str, Any], after: dict[str, Any], prefix: str = "algo.") -> list[str]:
    found = []
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            found += _changes(old, value, f"{prefix}{name}.")
        elif value != old:
            found.append(f"{prefix}{name}={value} (there {old})")
    return found

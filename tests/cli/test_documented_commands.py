"""Every command that the documentation shows is parsed and composed as it stands."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import agent_rl
from agent_rl.cli import main
from agent_rl.commands import build_parser
from agent_rl.config.commands import COMMANDS
from agent_rl.config.compose import compose, resolved_yaml

ROOT = Path(agent_rl.__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").rglob("*.md"))]


def in_text(text: str) -> list[str]:
    """Commands at the start of a line (after a prompt, a quote or `run`) and in inline code.

    Blocks marked ```text show output and wrong input; a command with ... or <...> in it is a pattern.
    """
    text = re.sub(r"```text\n.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r" \\\n\s+(?=[\w.]+=)", " ", text)  # a command that goes on in the next line
    lines = re.findall(r"^\s*(?:\$ |\"\s*|run |@?\$\(BIN\)/)?(agent-rl [^\n`]*)", text, flags=re.MULTILINE)
    inline = re.findall(r"`(agent-rl [^`\n]+)`", text)
    return [found for found in [*lines, *inline] if "..." not in found and "<" not in found]


def words_of(command: str) -> list[str]:
    """The words of a command as a shell would split them, without comments, redirections and what follows."""
    command = command.replace("$(PORT)", "8900").replace("$(DEMO_ARGS)", "").rstrip("\\ ")
    if command.count('"') % 2:  # a line of the Makefile that is an argument of printf
        command = command.rpartition('"')[0]
    words = shlex.split(command, comments=True)
    return words[1 : next((n for n, word in enumerate(words) if word in ("|", "&", ">", ";")), None)]


@cache
def documented() -> list[tuple[str, tuple[str, ...]]]:
    found = [(page.name, tuple(words_of(text))) for page in PAGES for text in in_text(page.read_text(encoding="utf-8"))]
    for words in [[name] for name in subcommands(build_parser())] + [
        *(["data", kind] for kind in ("miniwiki", "check", "prepare", "coverage")),
        *(["bench", kind] for kind in ("objective", "index", "retrieval", "rollout", "train")),
    ]:
        found += [(f"{' '.join(words)} --help", tuple(words_of(text))) for text in in_text(help_of(words))]
    return found


def subcommands(parser: Any) -> list[str]:
    return list(next(action for action in parser._actions if action.choices).choices)


def help_of(words: list[str]) -> str:
    parser: Any = build_parser()
    for word in words:
        parser = next(action for action in parser._actions if action.choices).choices[word]
    return parser.format_help()


@pytest.fixture
def a_place_with_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that has the run and the presets which the documentation speaks of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    saved = resolved_yaml(compose("train", ["experiment=demo"]))
    (tmp_path / "runs" / "demo" / "config.yaml").write_text(saved, encoding="utf-8")
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    page_of_task = (ROOT / "docs" / "adding_a_task.md").read_text(encoding="utf-8")
    task = re.search(r"```python\n# my_task.py\n(.*?)```", page_of_task, flags=re.DOTALL)
    assert task is not None
    (tmp_path / "my_task.py").write_text(task[1], encoding="utf-8")
    example = re.search(r"```yaml\n# mine/experiment/longer.yaml\n(.*?)```", page, flags=re.DOTALL)
    assert example is not None
    (tmp_path / "mine" / "experiment" / "longer.yaml").write_text(example[1], encoding="utf-8")


def test_the_search_for_commands_finds_them() -> None:
    pages = {page for page, _ in documented()}
    assert {"README.md", "Makefile", "configuration.md", "train --help"} <= pages
    assert len(documented()) > 50


@pytest.mark.usefixtures("a_place_with_runs")
@pytest.mark.parametrize(
    "words", sorted({words for _, words in documented() if words}), ids=lambda words: " ".join(words)
)
def test_documented_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """NVIDIA-NeMo/RL#2719 (S11): documented override has no effect."""
    if "--help" in words:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        assert ended.value.code == 0
        return
    if words[0] == "config":
        assert main(list(words)) == 0, capsys.readouterr().err
        return
    args = build_parser().parse_args(words)
    if args.composes is None or words[:2] == ("eval", "compare"):
        return
    assert args.composes in COMMANDS
    record = compose(args.composes, args.overrides, args.config_dir).model_dump(mode="json")
    for override in args.overrides:
        key, _, typed = override.partition("=")
        at: Any = record
        for name in key.split("."):
            at = at.get(name) if isinstance(at, dict) else None
        if "." in key:
            meant = float(typed) if re.match(r"^[\d.e-]+$", typed) else yaml.safe_load(typed)
            assert at == meant, f"{override}: {at!r}"


def test_the_message_shown_in_the_documentation_is_the_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    shown = re.search(r"```text\n\$ agent-rl (.*?)\n(.*?)```", page, flags=re.DOTALL)
    assert shown is not None
    assert main(shlex.split(shown[1])) == 2
    assert capsys.readouterr().err == shown[2]


def test_the_documented_presets_are_the_presets() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for group in (folder for folder in (ROOT / "configs").iterdir() if folder.is_dir() and any(folder.glob("*.yaml"))):
        row = next(line for line in page.splitlines() if line.startswith(f"| `{group.name}` |"))
        for preset in group.glob("*.yaml"):
            assert f"`{preset.stem}`" in row, f"{group.name}={preset.stem}"

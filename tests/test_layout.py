"""The house's arrows point down, and its plain names are ours."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import agent_rl
from agent_rl.layout import SIBLINGS, assert_layout

ROOT = Path(agent_rl.__file__).resolve().parents[1]
OURS = {"agent_rl", *SIBLINGS, "tests"}
MAY_IMPORT = {
    "agent_rl": {"agent_rl", "tools", "retrieval_index", "tasks", "configs"},
    "tools": {"tools", "retrieval_index"},
    "retrieval_index": {"retrieval_index"},
    "tasks": {"tasks"},
    "configs": {"configs"},
}
# Not at the top of any module of the command line and the configuration: `--help` must answer at once.
HEAVY = {
    "torch",
    "transformers",
    "faiss",
    "sentence_transformers",
    "hydra",
    "pydantic",
    "ray",
    "verl",
    "vllm",
}


def upward_imports(package_dir: Path) -> list[str]:
    """``file:line imports name`` for each import that its package may not make."""
    found = []
    for file in sorted(package_dir.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                top = name.split(".")[0]
                if top in OURS and top not in MAY_IMPORT[package_dir.name]:
                    found.append(f"{file}:{node.lineno} imports {name}")
    return found


def test_no_package_imports_upward() -> None:
    for package in MAY_IMPORT:
        assert upward_imports(ROOT / package) == []


def test_the_walk_sees_a_planted_upward_import(tmp_path: Path) -> None:
    package = tmp_path / "retrieval_index"
    (package / "inner").mkdir(parents=True)
    (package / "fine.py").write_text("import numpy\nfrom retrieval_index import x\n", encoding="utf-8")
    (package / "inner" / "bad.py").write_text(
        "def f():\n    from tools.protocol import Tool\n    import agent_rl.cli, json\n", encoding="utf-8"
    )
    found = [line.split("bad.py:")[1] for line in upward_imports(package)]
    assert found == ["2 imports tools.protocol", "3 imports agent_rl.cli"]


def run_python(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_our_own_layout_is_right() -> None:
    assert_layout()


def test_a_rival_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "tasks.py").write_text("", encoding="utf-8")
    code = "from agent_rl.cli import main; raise SystemExit(main(['config', 'show']))"
    done = run_python(code, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path / "tools") in done.stderr
    assert str(tmp_path / "tasks.py") in done.stderr
    assert "retrieval_index" not in done.stderr
    assert "Traceback" not in done.stderr


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom agent_rl.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    assert run_python(code, tmp_path).stderr.strip() == "[]"

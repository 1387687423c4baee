"""`bench objective` on a run in miniature: the table of gradients and the cost, with the run left as it was."""

from __future__ import annotations

import re

import pytest

from agent_rl.cli import main
from agent_rl.config.schema import RunConfig
from agent_rl.train.launch import train

pytestmark = pytest.mark.slow


def test_table_and_costs(tmp_path, serve, settings, warm_folder, capsys) -> None:
    server, _ = serve()
    run = tmp_path / "run"
    values = settings(run, server.url, model={"path": str(warm_folder)}, train={"steps": 1})
    train(RunConfig.model_validate(values), log=lambda _: None)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert main(["bench", "objective", f"run={run}", "pairs=2", "presets=[grpo,tr_grpo_eq9,tr_grpo_literal]"]) == 0
    text = capsys.readouterr().out
    rows = {
        row[0].strip("` "): row[1:] for row in (line.strip("|").split("|") for line in text.splitlines()) if row[1:]
    }
    assert float(rows["tr_grpo_eq9"][1]) > 0.2 > float(rows["grpo"][1]), "dead positives"
    assert rows["tr_grpo_literal"] == rows["grpo"]
    for row in ("grpo", "tr_grpo_eq9"):
        assert sum(float(share) for share in rows[row][2:]) == pytest.approx(1, abs=0.005)
    assert len(re.findall(r"\d\.\d{3} \(\d+\.\d{3} to \d+\.\d{3}\)", text)) == 2
    assert re.search(r"diagnostics' share of an update +\d+\.\d\d%", text)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before

    assert main(["bench", "objective", f"run={run}", "step=7"]) == 2
    assert "step=7" in (error := capsys.readouterr().err)
    assert "steps there: 1" in error
    assert main(["bench", "objective", f"run={run}", "presets=[grpo,nope]"]) == 2
    assert "algo=nope" in capsys.readouterr().err
    assert main(["bench", "objective"]) == 2
    assert "add run=" in capsys.readouterr().err
    assert main(["bench", "objective", f"run={tmp_path / 'none'}"]) == 2
    assert "none" in capsys.readouterr().err

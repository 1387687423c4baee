"""The report of a run that was trained: its numbers are those of metrics.jsonl and of the stored tokens."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from statistics import fmean

import pytest

from agent_rl.config.schema import RunConfig
from agent_rl.report import write_report
from agent_rl.report.diagnosis import diagnose
from agent_rl.report.run_data import read_run
from agent_rl.train.launch import train

pytestmark = pytest.mark.slow


def unpacked(html: str, css: str) -> list[dict]:
    texts = re.findall(rf'<script type="application/gzip" class="{css}" data-run="0">([^<]*)</script>', html)
    return [row for text in texts for row in json.loads(gzip.decompress(base64.b64decode(text)))]


def test_the_report_shows_what_was_trained_on(tmp_path, serve, settings, metrics, trajectories, warm_folder) -> None:
    server, _ = serve()
    model = {"path": str(warm_folder)}
    train(RunConfig.model_validate(settings(tmp_path / "run", server.url, model=model)), log=lambda _: None)
    page = write_report([tmp_path / "run"])
    html = page.read_text(encoding="utf-8")
    lines = metrics(tmp_path / "run")

    figures = json.loads(re.search(r'id="figures">(.*?)</script>', html).group(1))
    curves = {figure["title"]: figure for figure in figures}
    for title, key in (("Reward", "reward/mean"), ("Gradient norm before clipping", "objective/grad_norm")):
        assert curves[title]["data"][0]["y"] == pytest.approx([line[key] for line in lines], abs=1e-6)

    index, shown = unpacked(html, "index"), unpacked(html, "chunk")
    stored = [record for step in (1, 2, 3) for record in trajectories(tmp_path / "run", step)]
    assert [(row["step"], row["group"], row["sample"], row["reward"]) for row in index] == [
        (record["step"], record["group"], record["sample"], record["reward"]) for record in stored
    ]
    for details, record in zip(shown, stored, strict=True):
        assert details["mask"] == "".join(map(str, record["loss_mask"]))
        assert details["trained"] == "".join(str(int(weight is not None)) for weight in record["weights"])
        assert "1" not in [
            flag for flag, author in zip(details["trained"], details["authors"], strict=True) if author != "1"
        ]
        assert ("1" in details["trained"]) == (details["status"] == "trained") == bool(record["advantage"])
    for number in (1, 2, 3):
        trained = [
            abs(trainer - sampler)
            for record in stored
            if record["step"] == number
            for trainer, sampler in zip(record["trainer_logprobs"], record["logprobs"], strict=True)
            if trainer is not None
        ]
        line = next(line for line in lines if line["step"] == number)
        if trained:
            assert fmean(trained) == pytest.approx(line["mismatch/mean_abs_logp"], abs=2e-6)
    assert "mask" not in [finding.name for finding in diagnose(read_run(tmp_path / "run"))]
    _open(page.as_uri(), len(stored))


def _open(address: str, trajectories: int) -> None:
    """In a browser: no error, every trajectory listed."""
    path = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("the numbers agree; no Chromium on this machine to open the page in")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page, said = browser.new_page(), []
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        page.wait_for_selector("#shown .tokens")
        assert page.locator("#found").inner_text() == f"{trajectories} of {trajectories} trajectories in this page."
        assert said == []
        browser.close()

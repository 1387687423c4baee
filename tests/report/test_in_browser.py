"""The report as a person has it: opened from disk in headless Chromium, looked at, clicked and typed into."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent_rl.report import write_report
from agent_rl.report.serve import ReportServer

# On a busy machine a browser that has just started may paint nothing for half a minute.
pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=1, only_rerun="TimeoutError")]
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "&lt;b&gt;",
    "\x00\x1b[31mred\x7f",
    "\u202eabc\u2066def",
    "x" * 100_000,
    "'\"><svg onload=alert(1)>",
    "${alert(1)}{{7*7}}",
    "\ud800",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Any]]:
    """Opens an address; a console error, an exception or a dialog of the page fails the test at its end."""
    said: list[str] = []
    pages = []

    def opened(address: str, **settings: Any) -> Any:
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **settings})
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        page.wait_for_selector("#shown .tokens")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == []


@pytest.fixture
def report(tmp_path: Path, made: SimpleNamespace) -> str:
    run = made.run(tmp_path / "demo")
    for step in (10, 11):
        rows = [made.trajectory(step, sample, float(-1 + 2 * (sample == 1)), f"a{step}{sample}") for sample in range(4)]
        made.write_jsonl(run / f"trajectories/step_{step:06d}.jsonl.gz", rows)
    return write_report([run]).as_uri()


def until(page: Any, expression: str, seconds: float = 15.0) -> None:
    """Waits until ``expression`` holds. The page's own policy forbids wait_for_function, which would evaluate text."""
    ends = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < ends, f"never true: {expression}"
        page.wait_for_timeout(20)


def background(page: Any, token: int) -> str:
    return page.evaluate(f"getComputedStyle(document.querySelectorAll('.tokens span')[{token}]).backgroundColor")


def pixels(place: Any, ink: tuple[int, int, int]) -> int:
    """Of ``place`` in the colour ``ink``."""
    from PIL import Image

    picture = Image.open(io.BytesIO(place.screenshot())).convert("RGB")
    return sum(max(abs(a - b) for a, b in zip(pixel, ink, strict=True)) < 12 for pixel in picture.getdata())


def test_curves_are_drawn(report, open_page) -> None:
    page = open_page(report)
    plot = page.locator(".plot").first
    plot.locator(".main-svg").first.wait_for()
    for scheme, ink in (("light", (0x00, 0x72, 0xB2)), ("dark", (0x56, 0xB4, 0xE9))):
        page.emulate_media(color_scheme=scheme)
        ends = time.monotonic() + 15
        while not (drawn := pixels(plot, ink)) > 100:
            assert time.monotonic() < ends, f"{drawn} pixels of a line of the first colour of the {scheme} palette"
            page.wait_for_timeout(200)
    page.select_option("#smooth", "0.9")
    reward = "document.querySelectorAll('.plot')[1].data"  # its values, and the smoothed line
    until(page, f"{reward}?.length === 2 && {reward}[1].y[11] !== {reward}[0].y[11]")


def test_open_recolour_and_share(report, open_page) -> None:
    page = open_page(report)
    page.locator(".entry", has_text="a111").click()
    until(page, "document.querySelector('#shown').textContent.includes('sample 1')")
    assert page.locator(".siblings button").count() == 4
    spans = page.locator(".tokens span")
    assert [spans.nth(n).get_attribute("class") for n in (0, 3, 6, 9)] == [
        *("prompt", "policy trained", "tool", "policy trained")
    ]
    assert "Trained on: 4 of 10 tokens, all of them the policy's." in page.locator(".verdict").inner_text()
    seen = {background(page, 3)}
    for mode in ("probability", "weight", "pull", "mismatch"):
        page.select_option("#colours", mode)
        until(page, f"location.hash.includes('colours={mode}')")
        seen.add(background(page, 3))
        assert background(page, 6) == "rgba(0, 0, 0, 0)", "a tool's token has no such number"
    assert len(seen) >= 4
    spans.nth(4).click()
    assert page.locator("#hint").inner_text() == (
        '" q" · policy · p 0.6703 · log-probability -0.4 · weight 1.16 · advantage × weight 1.16 · '
        "trainer - sampler -0.01 · trained on"
    )
    address = page.url
    query = {key: value[0] for key, value in parse_qs(urlsplit(address).fragment).items()}
    assert query == {"run": "demo", "step": "11", "group": "train/11/0", "sample": "1", "colours": "mismatch"}
    again = open_page(address)
    assert "sample 1" in again.locator("#shown").inner_text()
    assert again.locator("#colours").input_value() == "mismatch"
    assert background(again, 3) == background(page, 3)


def test_one_beside_the_other(report, open_page) -> None:
    page = open_page(report)
    page.locator(".entry", has_text="a111").click()
    until(page, "document.querySelector('#shown').textContent.includes('sample 1')")
    page.select_option("#beside", "3")
    until(page, "document.querySelectorAll('.column').length === 2")
    assert page.locator(".column").nth(1).locator(".note").inner_text() == "sample 3 · reward -1 · a113 · answer"
    page.select_option("#colours", "pull")
    until(page, "location.hash.includes('colours=pull')")
    # Rewards of 1 and -1 with the same weights: opposite ends of one scale.
    assert background(page, 9) != background(page, 19) != "rgba(0, 0, 0, 0)"
    page.locator(".tokens span").nth(14).click()
    assert "advantage × weight -1.16" in page.locator("#hint").inner_text()
    boxes = [page.locator(".column").nth(n).bounding_box() for n in (0, 1)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    again = open_page(page.url)
    assert again.locator(".column").count() == 2
    again.keyboard.press("b")  # the last of the group: then nothing
    until(again, "document.querySelectorAll('.column').length === 1")
    again.keyboard.press("b")
    until(again, "document.querySelectorAll('.column .note')[1]?.textContent.startsWith('sample 0')")
    again.keyboard.press("j")
    until(again, "document.querySelector('#shown .note').textContent.includes('sample 2')")
    assert again.locator(".column").count() == 2, "it stays beside the others of its group"


def test_served_page_follows_the_run_in_the_browser(tmp_path, made, open_page) -> None:
    run = made.run(tmp_path / "demo")
    with ReportServer([run], None, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        page = open_page(f"http://127.0.0.1:{server.server_address[1]}/")
        page.locator(".entry", has_text="Bob").click()
        until(page, "location.hash.includes('sample=1')")
        assert page.locator("#found").inner_text() == "4 of 4 trajectories in this page."
        with page.expect_navigation(timeout=30_000):  # it asks every four seconds
            made.write_jsonl(run / "trajectories/step_000013.jsonl.gz", [made.trajectory(13, 0, 1.0, "new")])
        until(page, "document.querySelector('#found')?.textContent === '5 of 5 trajectories in this page.'", 30)
        until(page, "document.querySelector('#shown')?.textContent.includes('step 12 · item1 · sample 1')")
        server.shutdown()
        thread.join()
    page.close()  # or it would go on asking a server that is gone


def test_filters(report, open_page) -> None:
    page = open_page(report)
    entries = page.locator(".entry")
    assert entries.count() == 12
    page.fill("[name=from]", "11")
    page.fill("[name=to]", "11")
    until(page, "document.querySelectorAll('.entry').length === 4")
    page.select_option("[name=reward]", label="1")
    until(page, "document.querySelectorAll('.entry').length === 1")
    assert "a111" in entries.first.inner_text()
    page.fill("[name=text]", "BOB")
    until(page, "document.querySelectorAll('.entry').length === 0")
    page.select_option("[name=reward]", "")
    page.fill("[name=from]", "")
    page.fill("[name=to]", "")
    until(page, "document.querySelectorAll('.entry').length === 1")
    assert page.locator("#found").inner_text() == "1 of 12 trajectories in this page."
    page.fill("[name=text]", "")
    page.select_option("[name=order]", "high")
    until(page, "document.querySelector('.entry').textContent.includes('· 1')")


def test_keyboard(report, open_page) -> None:
    page = open_page(report)
    sample = "document.querySelector('#shown .note').textContent"
    page.keyboard.press("k")
    until(page, f"{sample}.includes('step 12 · item2')")
    page.keyboard.press("p")
    until(page, f"{sample}.includes('item1')")
    page.keyboard.press("j")
    until(page, f"{sample}.includes('item2')")
    page.keyboard.press("c")
    until(page, "location.hash.includes('colours=probability')")
    page.keyboard.press("ArrowRight")
    until(page, "document.getElementById('hint').textContent.startsWith('\"<search>\" · policy')")
    page.keyboard.press("/")
    page.keyboard.type("jk")
    assert page.locator("[name=text]").input_value() == "jk"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone(report, open_page, scheme) -> None:
    page = open_page(report, viewport={"width": 390, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('#shown').getBoundingClientRect().right") <= 390


def test_hostile_tokens_are_text(tmp_path, made, open_page) -> None:
    run = made.run(tmp_path / "demo")
    authors = [0] + [1] * (len(HOSTILE) - 1)
    row = made.trajectory(
        *(12, 0, 1.0, HOSTILE[0]),
        pieces=HOSTILE,
        ids=[0] * len(HOSTILE),
        authors=authors,
        loss_mask=authors,
        logprobs=[-0.1] * len(HOSTILE),
        weights=[1.0] * len(HOSTILE),
        trainer_logprobs=None,
        question=HOSTILE[1],
        gold=[HOSTILE[7]],
        stop_reason=HOSTILE[0],
        item_id=HOSTILE[6],
    )
    made.write_jsonl(run / "trajectories/step_000012.jsonl.gz", [row])
    page = open_page(write_report([run]).as_uri())
    shown = page.evaluate("[...document.querySelectorAll('.tokens span')].map((span) => span.textContent)")
    assert shown[:4] == HOSTILE[:4]
    assert shown[4:6] == ["␀␛[31mred␡", "⟨U+202E⟩abc⟨U+2066⟩def"]
    assert shown[6:] == [*HOSTILE[6:9], "?"]
    assert page.evaluate("document.querySelectorAll('img, main svg:not(.plot svg)').length") == 0
    wide = "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > 1281).length"
    assert page.evaluate(wide) == 0
    page.locator(".tokens span").nth(6).click()
    assert len(page.locator("#hint").inner_text()) < 300

"""The report of small made-up runs: what it must hold, what it must survive, what must stay inert."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agent_rl.errors import ArtifactError, UsageError
from agent_rl.report import write_report
from agent_rl.report.charts import thin
from agent_rl.report.gather import gather
from agent_rl.report.page import script_json
from agent_rl.report.run_data import read_run

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, the text of each script, the plain text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    def unpacked(self, css: str) -> list:
        """What the page's packed scripts of that class hold, joined in order."""
        pairs = zip(self.scripts, self.find("script"), strict=True)
        texts = [text for text, attributes in pairs if attributes.get("class") == css and text]
        return [row for text in texts for row in json.loads(gzip.decompress(base64.b64decode(text)))]

    def find(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def run(tmp_path, made) -> Path:
    return made.run(tmp_path / "demo")


def page_of(*runs: Path) -> Page:
    return Page(write_report(list(runs)).read_text(encoding="utf-8"))


def test_default_place_size_and_no_leftovers(run):
    path = write_report([run])
    assert path == run / "report.html"
    assert path.stat().st_size < 10_000_000
    assert not list(run.glob("tmp*"))


def test_asks_for_nothing_over_the_network(run):
    page = page_of(run)
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "data"} & attributes.keys(), tag
        assert attributes.get("href", "#").startswith("#")
    assert page.find("link") == []
    (policy,) = [meta["content"] for meta in page.find("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'")


def test_only_the_pages_own_scripts_may_run(run):
    page = page_of(run)
    (policy,) = [meta["content"] for meta in page.find("meta") if "http-equiv" in meta]
    script_source = re.search(r"script-src ([^;]*)", policy).group(1)
    assert "unsafe" not in script_source
    executed = [text for text, about in zip(page.scripts, page.find("script"), strict=True) if not about]
    (packed,) = [
        text for text, about in zip(page.scripts, page.find("script"), strict=True) if about.get("id") == "plotly"
    ]
    executed.insert(0, gzip.decompress(base64.b64decode(packed)).decode())  # the page unpacks it when it is needed
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in executed]
    assert script_source.split() == [f"'sha256-{digest}'" for digest in hashes]


def test_summary_holds_the_numbers(run):
    text = page_of(run).text
    for words in (
        "demo", "search", "smollm2-135m", "tr_grpo", "0.200 [0.100, 0.300]", "0.500 [0.400, 0.600]",
        "+0.300 [+0.200, +0.400]", "12 greedy answers turned right, 0 turned wrong", "Dev question 8?",
    ):  # fmt: skip
        assert words in text


def test_curves_are_those_there_are_numbers_for(run):
    page = page_of(run)
    figures = {figure["title"]: figure for figure in json.loads(page.scripts[0])}
    assert "Reward" in figures
    assert "Tool latency" not in figures
    assert figures["Reward"]["data"][0]["x"] == list(range(1, 13))
    assert figures["Warm-up loss"]["data"][0]["y"] == [2.0, 1.0, pytest.approx(2 / 3, abs=1e-5)]
    assert figures["Entropy"]["data"][0]["y"][1] is None  # NaN is a gap
    assert [trace["name"] for trace in figures["Why rollouts stopped"]["data"]] == ["answer", "max_turns"]
    assert [trace["name"] for trace in figures["Seconds of a step"]["data"]] == ["rollout", "update"]
    assert figures["Evaluation"]["data"][0]["error_y"]["array"] == pytest.approx([0.1, 0.1])
    numbers = [int(attributes["data-figure"]) for attributes in page.find("div") if "data-figure" in attributes]
    assert numbers == list(range(len(figures)))


def test_weights_come_from_trained_tokens_only(run):
    figures = {figure["title"]: figure for figure in json.loads(page_of(run).scripts[0])}
    scatter = figures["Weight against probability"]["data"][0]
    assert len(scatter["x"]) == 4 * 4  # four trained tokens in each of four trajectories
    assert min(scatter["y"]) == pytest.approx(1.12)
    assert sum(figures["How the weights are spread"]["data"][0]["y"]) == pytest.approx(1.0)


def test_every_token_is_there_with_its_author_and_numbers(run):
    page = page_of(run)
    index, shown = page.unpacked("index"), page.unpacked("chunk")
    assert [row["answer"] for row in index] == ["Ann", "Bob", "Eve", "broken"]
    assert [row["at"] for row in index] == [0, 1, 2, 3]
    first = shown[0]
    assert first["authors"] == "0001112221"
    assert first["mask"] == first["trained"] == "0001110001"
    assert first["logprobs"] == [-0.3, -0.4, -0.5, -0.9]
    assert first["weights"] == [1.12, 1.16, 1.2, 1.36]
    assert first["mismatch"] == [-0.01] * 4
    assert first["status"] == "trained"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"error": {"message": "down"}, "advantage": None}, "infrastructure broke it"),
        ({"advantage": None}, "its group was dropped"),
        ({"advantage": 0.0}, "its advantage is 0"),
    ],
)
def test_what_no_update_saw_is_said_not_to_be_trained_on(run, made, changes, words):
    """The mask of such a trajectory is 1 on the policy's tokens all the same."""
    row = made.trajectory(12, 0, 1.0, "x", weights=None, **changes)
    made.write_jsonl(run / "trajectories/step_000012.jsonl.gz", [row])
    page = page_of(run)
    (shown,) = page.unpacked("chunk")
    assert (shown["mask"], shown["trained"]) == ("0001110001", "0000000000")
    assert words in shown["status"]
    assert page.unpacked("index")[0]["trained"] is False


def test_a_long_run_is_thinned_by_whole_groups_and_says_so(run, made):
    for step in range(1, 41):
        rows = [
            made.trajectory(step, sample, 1.0, f"{step} {sample} {group}", group=f"g{group}")
            for group in range(5)
            for sample in range(4)
        ]
        made.write_jsonl(run / f"trajectories/step_{step:06d}.jsonl.gz", rows)
    data = read_run(run)
    whole = gather(data, 10_000_000)
    assert whole.shown == 800
    assert whole.notes == []
    part = gather(data, 20_000)
    assert len(part.index) + sum(map(len, part.chunks)) <= 20_000
    index = json.loads(gzip.decompress(base64.b64decode(part.index)))
    members: dict = {}
    for row in index:
        members.setdefault((row["step"], row["group"]), []).append(row["sample"])
    assert 40 < part.shown < 800
    assert set(map(tuple, members.values())) == {(0, 1, 2, 3)}
    assert max(row["step"] for row in index) == 40
    assert min(row["step"] for row in index) < 10
    assert part.notes[0].startswith(f"The page has room for {part.shown} of 800 trajectories")
    assert part.tally.trajectories == 800, "what is counted is counted over all of them"
    assert gather(data, 10_000_000, (3, 4)).shown == 40
    with pytest.raises(UsageError, match="has no trajectory of these steps"):
        gather(data, 10_000_000, (99, 100))


def test_words_by_probability(run, made):
    def row(sample, sure):
        pieces, authors = ["q", " sure", " doubt", " doc"], [0, 1, 1, 2]
        changes = {
            "ids": [0] * 4,
            "loss_mask": [0, 1, 1, 0],
            "logprobs": [0, math.log(sure), math.log(0.1), 0],
            "weights": [None, 1.0, 1.0, None],
            "trainer_logprobs": None,
        }
        return made.trajectory(12, sample, 1.0, "x", pieces=pieces, authors=authors, **changes)

    made.write_jsonl(run / "trajectories/step_000012.jsonl.gz", [row(n, 0.8 + 0.05 * (n % 2)) for n in range(6)])
    lists = gather(read_run(run), 10**6).tally.word_lists()
    assert lists == {
        "low": [{"text": " doubt", "count": 6, "p": 0.1}],
        "high": [{"text": " sure", "count": 6, "p": 0.825}],
    }
    made.write_jsonl(run / "trajectories/step_000012.jsonl.gz", [row(n, 0.8) for n in range(4)])
    assert gather(read_run(run), 10**6).tally.word_lists() == {"low": [], "high": []}, "four times is too few"


@pytest.mark.parametrize("place", ["answer", "question", "stop_reason", "run name", "gold"])
def test_hostile_text_stays_inert(tmp_path, made, place):
    run = made.run(tmp_path / ("run<img onerror=alert(1)>" if place == "run name" else "demo"), answer=HOSTILE)
    file = run / "trajectories/step_000012.jsonl.gz"
    hostile = {"question": HOSTILE, "stop_reason": HOSTILE, "gold": [HOSTILE]}
    rows = [
        made.trajectory(12, i, 1.0, HOSTILE, **{place: hostile[place]} if place in hostile else {}) for i in range(3)
    ]
    made.write_jsonl(file, rows)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"phase": "train", "step": 13, f"rollout/stop/{HOSTILE}": 1.0}) + "\n")
    answer = {"item_id": "d39", "question": HOSTILE, "gold": [HOSTILE], "mode": "greedy", "answer": HOSTILE, "em": 1.0}
    made.write_jsonl(run / "eval/after.jsonl", [answer])
    page = page_of(run)
    assert page.find("img") == []
    assert len([a for a in page.find("script") if "type" not in a]) == 5, "the page's own"
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert HOSTILE in page.text  # the question of the evaluation: shown as text, unharmed
    assert HOSTILE in page.unpacked("chunk")[0]["pieces"]
    assert any(HOSTILE in trace["name"] for figure in json.loads(page.scripts[0]) for trace in figure["data"])


def test_control_characters_surrogates_and_direction_marks_are_made_visible(tmp_path, made):
    run = made.run(tmp_path / "demo", answer="a\x00b\x1bc\ud800d\u202e")
    assert page_of(run).unpacked("chunk")[0]["pieces"][-1] == "a\u2400b\u241bc?d⟨U+202E⟩"


def test_script_json_keeps_the_value():
    value = {"a": ["</script>", "<!--", "&", "\u2028", 1.5, None]}
    text = script_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_two_runs_are_laid_over_each_other(tmp_path, made):
    runs = made.run(tmp_path / "a"), made.run(tmp_path / "b")
    out = write_report(runs, tmp_path / "deep/compare.html")
    page = Page(out.read_text(encoding="utf-8"))
    figures = {figure["title"]: figure for figure in json.loads(page.scripts[0])}
    assert [trace["name"] for trace in figures["Reward"]["data"]] == ["a: mean", "b: mean"]
    assert {"Why rollouts stopped (a)", "Why rollouts stopped (b)"} <= set(figures)
    assert len(page.unpacked("chunk")) == 2 * 4


def test_a_run_that_has_just_begun_gives_a_report(tmp_path):
    run = tmp_path / "new"
    run.mkdir()
    (run / "config.yaml").write_text("algo: {name: grpo}\n")
    text = page_of(run).text
    assert "No metrics were stored yet." in text
    assert "No evaluation was stored" in text


def test_repeated_step_of_a_resumed_run_counts_once(run):
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"phase": "train", "step": 12, "reward/mean": 0.9}) + "\n")
    rows = read_run(run).metrics["train"]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["reward/mean"] == 0.9


def test_cut_off_last_line_is_left_out_and_told(run):
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"phase": "train", "st')
    assert "metrics.jsonl: line 16 is cut off and was left out." in page_of(run).text


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("metrics.jsonl", "{}\n", "metrics.jsonl: a row without 'phase' or 'step'"),
        ("metrics.jsonl", "x\n{}\n", "metrics.jsonl:1: not JSON"),
        ("eval/after.json", "[1]", "after.json: should be an object"),
        ("config.yaml", "a: [", "config.yaml: not YAML"),
        ("trajectories/step_000012.jsonl.gz", "plain", "step_000012.jsonl.gz: unreadable"),
    ],
)
def test_broken_parts_are_named(run, file, content, words):
    (run / file).write_text(content)
    with pytest.raises(ArtifactError) as error:
        write_report([run])
    assert words in str(error.value)


def test_lists_that_do_not_fit_together_are_named(run, made):
    made.write_jsonl(run / "trajectories/step_000012.jsonl.gz", [made.trajectory(12, 0, 1.0, "x", weights=[None])])
    with pytest.raises(ArtifactError, match=r"step_000012.jsonl.gz:1: lists of different lengths"):
        write_report([run])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", b'{"phase": "train", "step": "x"}\n'),
        ("metrics.jsonl", b'{"phase": "train", "step": 1, "time/step_s": null}\n'),
        ("config.yaml", b"\xff\xfe\x00"),
        ("eval/before.json", b'{"step": "x"}'),
        ("eval/before.json", b'{"greedy": {"em": {"mean": "x", "low": 0, "high": 1}}}'),
        ("eval/before.json", b'{"greedy": [1]}'),
        # without a time in them: bytes are a test's name, on which the workers of pytest-xdist have to agree
        (
            "trajectories/step_000099.jsonl.gz",
            gzip.compress(b'{"pieces": 5, "authors": [], "loss_mask": [], "logprobs": [], "weights": null}', mtime=0),
        ),
        ("trajectories/step_000099.jsonl.gz", gzip.compress(b'{"a": 1}' * 999, mtime=0)[:-30] + b"\xff" * 30),
    ],
)
def test_values_that_no_run_writes_are_told_as_such(run, file, content):
    (run / file).write_bytes(content)
    with pytest.raises(ArtifactError, match=re.escape(str(run))):
        write_report([run])


def test_a_place_that_is_no_file_is_named(run, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a folder; give --out"):
        write_report([run], tmp_path)
    with pytest.raises(UsageError, match=r"x\.html: cannot be written"):
        write_report([run], tmp_path / "file" / "x.html")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such run directory"):
        write_report([tmp_path / "none"])
    with pytest.raises(UsageError, match="not a run directory"):
        write_report([tmp_path])
    with pytest.raises(UsageError, match="at least one"):
        write_report([])


def test_same_run_same_bytes(run):
    first = write_report([run]).read_bytes()
    assert write_report([run]).read_bytes() == first


def seeds(tmp_path, made) -> list[Path]:
    runs = [made.run(tmp_path / name) for name in ("a1", "a2", "b")]
    for run, seed, algo in zip(runs, (1, 2, 1), ("grpo", "grpo", "tr_grpo"), strict=True):
        (run / "config.yaml").write_text(f"algo: {{name: {algo}}}\nseed: {seed}\nrun_dir: {run}\n")
        lines = [{"phase": "train", "step": step, "reward/mean": seed * step} for step in range(1, 6)]
        made.write_jsonl(run / "metrics.jsonl", lines)
    return runs


def test_seeds_become_a_band_and_differences_a_table(tmp_path, made):
    page = page_of(*seeds(tmp_path, made))
    (figure,) = (f for f in json.loads(page.scripts[0]) if f["title"] == "Reward")
    assert [trace["name"] for trace in figure["data"]] == ["a1: mean", "a2: mean", "b: mean"]
    low, high, mean, other = figure["bands"]
    assert (low["band"], high["band"]) == ("low", "high")
    assert low["y"] == [1, 2, 3, 4, 5]
    assert high["y"] == [2, 4, 6, 8, 10]
    assert mean["y"] == [1.5, 3, 4.5, 6, 7.5]
    assert mean["name"] == "a1 and 1 more: mean, mean of 2 seeds"
    assert other["name"] == "b: mean"
    assert "Settings that differ" in page.text
    assert re.search(r"algo\.name\s*grpo\s*grpo\s*tr_grpo", page.text)


def test_a_spike_survives_thinning():
    points = [(step, 1.0) for step in range(10_000)]
    points[4321] = (4321, 99.0)
    points[4322] = (4322, None)
    shown = thin(points)
    assert len(shown) <= 1000
    assert (4321, 99.0) in shown
    assert [x for x, _ in shown] == sorted(x for x, _ in shown)
    assert thin(points[:1000]) == points[:1000]


def test_a_curve_without_a_value_above_zero_is_named_not_drawn(run, made):
    lines = [{"phase": "train", "step": step, "tool/failures": 0.0, "reward/mean": 1.0} for step in (1, 2)]
    made.write_jsonl(run / "metrics.jsonl", lines)
    page = page_of(run)
    assert "Tool failures" not in [figure["title"] for figure in json.loads(page.scripts[0])]
    assert "0 at every step, so not drawn: Tool failures." in page.text

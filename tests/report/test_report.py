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
from agent_rl.report.page import script_json
from agent_rl.report.run_data import read_run
from agent_rl.report.trajectories import choose_three, last_trajectories

HOSTILE = "</script><img src=x onerror=alert(1)>"


def trajectory(step: int, sample: int, reward: float | None, answer: str, **changes) -> dict:
    pieces = [
        "Question",
        ":",
        " Who?",
        "<search>",
        " q",
        "</search>",
        "<information>",
        " Doc",
        "</information>",
        answer,
    ]
    authors = [0, 0, 0, 1, 1, 1, 2, 2, 2, 1]
    return {
        "step": step, "split": "train", "item_id": f"item{sample}", "group": 0, "sample": sample,
        "question": "Who?", "gold": ["Ann"], "ids": list(range(10)), "pieces": pieces, "authors": authors,
        "loss_mask": [int(author == 1) for author in authors],
        "logprobs": [-0.1 * i if author == 1 else 0.0 for i, author in enumerate(authors)],
        "weights": [1.0 + 0.04 * i if author == 1 else None for i, author in enumerate(authors)],
        "advantage": reward, "reward": reward, "score_parts": {"em": float(reward == 1.0), "format": 1.0},
        "stop_reason": "answer", "answer": answer, "turns": 2, "error": None, "counters": {}, "times": {},
    } | changes  # fmt: skip


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def interval(mean: float) -> dict:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}


def make_run(path: Path, answer: str = "Ann") -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(
        "task: {kind: search}\nalgo: {name: tr_grpo}\nmodel: {path: smollm2-135m}\nrun_dir: '<b>x</b>'\n"
    )
    metrics = [{"phase": "warmup", "step": step, "objective/loss": 2.0 / step} for step in (1, 2, 3)]
    metrics += [
        {
            "phase": "train", "step": step, "reward/mean": -1 + 0.1 * step, "reward/em": 0.05 * step,
            "objective/grad_norm": 1.5, "objective/entropy": math.nan if step == 2 else 0.7,
            "rollout/policy_tokens_mean": 20.0, "rollout/tool_tokens_mean": 90.0, "rollout/stop/answer": 0.75,
            "rollout/stop/max_turns": 0.25, "time/rollout_s": 6.0, "time/update_s": 3.0, "time/step_s": 9.0,
            "mismatch/mean_abs_logp": 1e-3,
        }
        for step in range(1, 13)
    ]  # fmt: skip
    write_jsonl(path / "metrics.jsonl", metrics)
    write_jsonl(
        path / "trajectories/step_000012.jsonl.gz",
        [
            trajectory(12, 0, 1.0, answer),
            trajectory(12, 1, -1.0, "Bob"),
            trajectory(12, 2, -1.0, "Eve"),
            trajectory(12, 3, None, "broken", error={"boundary": "tool", "type": "X", "message": "down"}),
        ],
    )
    for label, step, em in (("before", 0, 0.2), ("after", 12, 0.5)):
        greedy, sampled = {"em": interval(em), "f1": interval(em + 0.1)}, {"avg@4": interval(em)}
        summary = {"label": label, "step": step, "questions": 40, "greedy": greedy, "sampled": sampled}
        (path / "eval").mkdir(exist_ok=True)
        (path / f"eval/{label}.json").write_text(json.dumps(summary))
        rows = [
            {"item_id": f"d{i}", "question": f"Dev question {i}?", "gold": ["Ann"], "mode": "greedy", "sample": 0,
             "answer": "Ann" if i < 40 * em else None, "em": float(i < 40 * em), "f1": 0.0}
            for i in range(40)
        ]  # fmt: skip
        write_jsonl(path / f"eval/{label}.jsonl", rows)
    (path / "eval/comparison.json").write_text(json.dumps({"greedy_em": interval(0.3)}))
    return path


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

    def find(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "demo")


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
    executed = [text for text, attributes in zip(page.scripts, page.find("script"), strict=True) if not attributes]
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


def test_every_token_is_shown_with_its_author_and_numbers(run):
    page = page_of(run)
    tokens = [a for a in page.find("span") if "title" in a]
    assert len(tokens) == 3 * 10
    assert [t["class"] for t in tokens[:10]] == ["prompt"] * 3 + ["policy trained"] * 3 + ["tool"] * 3 + [
        "policy trained"
    ]
    assert tokens[3]["title"] == "policy · logprob -0.300 (p 0.741) · weight 1.120 · trained"
    assert tokens[0]["title"] == "prompt"


def test_three_trajectories_are_chosen_among_the_scored(run):
    rows = last_trajectories(read_run(run))
    shown = choose_three(rows)
    assert [s.row["answer"] for s in shown] == ["Ann", "Bob", "Eve"]
    assert [s.row["answer"] for s in choose_three(rows[:1])] == ["Ann"]
    assert choose_three(rows[3:]) == []


@pytest.mark.parametrize("place", ["answer", "question", "stop_reason", "run name", "gold"])
def test_hostile_text_stays_inert(tmp_path, place):
    run = make_run(tmp_path / ("run<img onerror=alert(1)>" if place == "run name" else "demo"), answer=HOSTILE)
    file = run / "trajectories/step_000012.jsonl.gz"
    hostile = {"question": HOSTILE, "stop_reason": HOSTILE, "gold": [HOSTILE]}
    rows = [trajectory(12, i, 1.0, HOSTILE, **{place: hostile[place]} if place in hostile else {}) for i in range(3)]
    write_jsonl(file, rows)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"phase": "train", "step": 13, f"rollout/stop/{HOSTILE}": 1.0}) + "\n")
    write_jsonl(run / "eval/after.jsonl", [{"item_id": "d39", "question": HOSTILE, "gold": [HOSTILE], "mode": "greedy",
                                           "answer": HOSTILE, "em": 1.0}])  # fmt: skip
    page = page_of(run)
    assert page.find("img") == []
    assert len(page.find("script")) == 3
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert HOSTILE in page.text  # shown as text, unharmed
    assert any(HOSTILE in trace["name"] for figure in json.loads(page.scripts[0]) for trace in figure["data"])


def test_control_characters_and_surrogates_do_not_break_the_page(tmp_path):
    run = make_run(tmp_path / "demo", answer="a\x00b\x1bc\ud800d\u202e")
    assert "a\u2400b\u241bc?d" in page_of(run).text


def test_script_json_keeps_the_value():
    value = {"a": ["</script>", "<!--", "&", "\u2028", 1.5, None]}
    text = script_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_two_runs_are_laid_over_each_other(tmp_path):
    runs = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    out = write_report(runs, tmp_path / "deep/compare.html")
    page = Page(out.read_text(encoding="utf-8"))
    figures = {figure["title"]: figure for figure in json.loads(page.scripts[0])}
    assert [trace["name"] for trace in figures["Reward"]["data"]] == ["a: mean", "b: mean"]
    assert {"Why rollouts stopped (a)", "Why rollouts stopped (b)"} <= set(figures)
    assert len([a for a in page.find("span") if "title" in a]) == 2 * 3 * 10


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


def test_lists_that_do_not_fit_together_are_named(run):
    write_jsonl(run / "trajectories/step_000012.jsonl.gz", [trajectory(12, 0, 1.0, "x", weights=[None])])
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
        (
            "trajectories/step_000099.jsonl.gz",
            gzip.compress(b'{"pieces": 5, "authors": [], "loss_mask": [], "logprobs": [], "weights": null}'),
        ),
        ("trajectories/step_000099.jsonl.gz", gzip.compress(b'{"a": 1}' * 999)[:-30] + b"\xff" * 30),
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

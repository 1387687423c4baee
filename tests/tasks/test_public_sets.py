"""`agent-rl data prepare`: every layout, the manifest, pinned downloads and the hub, against local servers."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_rl.cli import main
from agent_rl.commands.data_prepare import git_blob, prepare
from tasks import public_sets
from tasks.base import TaskDataError
from tasks.kk import KKTask
from tasks.math import MathTask
from tasks.public_sets import PUBLIC_SETS, PublicSet, SourceFile
from tasks.rows import read_rows
from tasks.search import SearchTask

VERL = " Let's think step by step and output the final answer within \\boxed{}."
LOGIC = {
    "quiz": "who?",
    "names": ["Al", "Bo"],
    "solution": [True, False],
    "statements": "(('->', ('lying', 1), ('telling-truth', 0)), ('lying', 0))",
    "prompt": [{"role": "user", "content": "<|im_start|>user\nwho?<|im_end|>\n<think>"}],
}
# name -> (rows as the public file has them, ending, what must be read)
FILES = {
    "nq": ([{"id": "test_0", "question": "who?", "golden_answers": ["Ann"], "metadata": {"x": 1}}], "jsonl", ("Ann",)),
    "logic_rl": ([LOGIC], "parquet", ("(1) Al is a knight\n(2) Bo is a knave",)),
    "dsr_uniform": (
        [{"prompt": [{"role": "user", "content": "1+1?" + VERL}], "reward_model": {"ground_truth": "2"}}] * 2,
        "parquet",
        ("2",),
    ),
    "orz_57k": (
        [[{"from": "human", "value": "1+1?"}, {"from": "assistant", "ground_truth": {"value": "2"}}]],
        "json",
        ("2",),
    ),
    "math500": ([{"problem": "p", "solution": "s", "answer": "2", "unique_id": "test/1"}], "jsonl", ("2",)),
    "olympiadbench": (
        [{"id": 7, "question": "q", "solution": ["s"], "final_answer": ["$1.5$"], "error": "1e-1", "unit": None}],
        "jsonl",
        ("$1.5$",),
    ),
    "minerva": ([{"problem": "p", "solution": "so \\boxed{1.6} cm", "idx": 0}], "jsonl", ("1.6",)),
    "amc": ([{"problem": "p", "answer": 142.0}], "json", ("142.0",)),
    "aime24": ([{"id": 60, "problem": "p", "answer": "025", "solution": "s"}], "jsonl", ("025",)),
    "gsm8k": ([{"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 2"}], "jsonl", ("2",)),
}


def written(folder, name):
    rows, ending, _ = FILES[name]
    file = folder / f"{name}.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif ending == "json":
        file.write_text(json.dumps(rows), encoding="utf-8")
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def read_back(task, file):
    none = {"train": [], "dev": []}
    if task == "search":
        return SearchTask({"kind": "jsonl", "train": None, "dev": None, "test": str(file), "eval_fraction": 0.0})
    return (KKTask if task == "kk" else MathTask)({"kind": "files", **none, "test": [str(file)]})


@pytest.mark.parametrize("name", FILES)
def test_every_layout_becomes_ours_and_validates(name, tmp_path):
    known, gold = PUBLIC_SETS[name], FILES[name][2]
    split = "test" if "test" in known.files else "train"
    rows = prepare(name, tmp_path, {split: [str(written(tmp_path, name))]})
    assert rows == {split: len(FILES[name][0])}
    file = tmp_path / f"{split}.jsonl"
    task = read_back(known.task, file)
    items = task.items("test")
    assert len({item.id for item in items}) == len(items) == rows[split]
    assert items[0].gold == gold
    for item in items:
        task.validate(item)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["name"], manifest["task"], manifest["licence"]) == (name, known.task, known.licence)
    assert manifest["splits"][split]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_what_conversion_keeps_and_leaves_out(tmp_path):
    def first(name, split):
        (tmp_path / name).mkdir()
        prepare(name, tmp_path / name, {split: [str(written(tmp_path, name))]})
        return json.loads((tmp_path / name / f"{split}.jsonl").read_text().splitlines()[0])

    assert first("nq", "test") == {"id": "test_0", "question": "who?", "golden_answers": ["Ann"]}
    dsr = first("dsr_uniform", "train")
    assert dsr["problem"] == "1+1?"
    assert dsr["prompt"] == [{"role": "user", "content": "1+1?" + VERL}]
    assert first("logic_rl", "test")["prompt"] == LOGIC["prompt"][0]["content"]
    assert first("olympiadbench", "test")["tolerance"] == 0.1


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("nq", {"id": "1", "question": "q"}, "'golden_answers' is missing"),
        ("minerva", {"problem": "p", "solution": "no box", "idx": 1}, "no .boxed"),
        ("gsm8k", {"question": "q", "answer": "2"}, "no ####"),
        ("orz_57k", {"turns": [{"value": "q"}]}, "ground truth"),
        ("math500", {"problem": "p"}, "is missing"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(name, row, words, tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text("\n" + json.dumps(row) + "\n", encoding="utf-8")
    split = next(iter(PUBLIC_SETS[name].files)) if name != "nq" else "test"
    with pytest.raises(TaskDataError, match=f"x.jsonl:2.*{words}"):
        prepare(name, tmp_path, {split: [str(file)]})


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, "aime24")
    assert main(["data", "prepare"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PUBLIC_SETS)
    assert main(["data", "prepare", "name=aime24", f"test={file}"]) == 0
    assert "data/aime24: test 1" in capsys.readouterr().out
    assert main(["data", "check", "task=math", "task.data.kind=files", "task.data.test=data/aime24/test.jsonl"]) == 0
    assert main(["data", "prepare", "name=aime24", f"test={file}"]) == 2
    assert "holds a data set already" in capsys.readouterr().err
    assert main(["data", "prepare", "name=aime25"]) == 2
    assert "no such data set (there are: nq," in capsys.readouterr().err
    assert main(["data", "prepare", "name=aime24", "out=x", f"train={file}"]) == 2
    assert "train=...: aime24 has no such split (it has: test)" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


class Files(BaseHTTPRequestHandler):
    """Serves ``content`` by path, plain and as the hub does."""

    def __init__(self, content, *args):
        self.content = content
        super().__init__(*args)

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(head=True)

    def do_GET(self):
        self.answer(head=False)

    def answer(self, head):
        body = self.content.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("ETag", f'"{hashlib.sha256(body or b"").hexdigest()}"')
        self.send_header("X-Repo-Commit", hashlib.sha1(self.path.encode()).hexdigest())
        self.end_headers()
        if not head and body is not None:
            self.wfile.write(body)


@pytest.fixture
def served():
    content: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, content))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield content, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_pinned_download_is_checked_and_kept(tmp_path, monkeypatch, served):
    from agent_rl.commands.data_prepare import _fetched
    from retrieval_index.errors import ChecksumError, FetchError

    content, url = served
    monkeypatch.setenv("AGENT_RL_CACHE", str(tmp_path / "cache"))
    content["/set.jsonl"] = b'{"problem": "p", "answer": "2"}\n'
    (tmp_path / "same").write_bytes(content["/set.jsonl"])
    pinned = SourceFile(f"{url}/set.jsonl", git_blob(tmp_path / "same"))
    path = _fetched(pinned)
    content.clear()
    assert _fetched(pinned) == path  # from the cache
    content["/set.jsonl"] = b"another file"
    with pytest.raises(ChecksumError, match="git blob"):
        _fetched(SourceFile(f"{url}/set.jsonl", "0" * 40))
    monkeypatch.setenv("AGENT_RL_OFFLINE", "1")
    with pytest.raises(FetchError, match="AGENT_RL_OFFLINE"):
        _fetched(SourceFile(f"{url}/set.jsonl", "0" * 40))


def test_git_blob_is_gits_own(tmp_path):
    (tmp_path / "x").write_bytes(b"hello\n")
    assert git_blob(tmp_path / "x") == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object


def test_a_set_of_another_size_than_published_is_refused(tmp_path, monkeypatch):
    row = tmp_path / "rows.jsonl"
    row.write_text(json.dumps(FILES["nq"][0][0]) + "\n", encoding="utf-8")
    small = PublicSet("search", "x", {"test": (SourceFile(str(row)),)}, {"test": 2}, PUBLIC_SETS["nq"].convert)
    monkeypatch.setitem(public_sets.PUBLIC_SETS, "small", small)
    with pytest.raises(TaskDataError, match="test has 1 rows, but 2 are published"):
        prepare("small", tmp_path, {})


def test_two_files_of_one_split_keep_their_ids_apart(tmp_path):
    file = written(tmp_path, "nq")
    assert prepare("nq_hotpotqa", tmp_path, {"train": [str(file), str(file)]}) == {"train": 2}
    ids = [json.loads(line)["id"] for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert ids == ["0_test_0", "1_test_0"]


def test_the_sizes_are_the_published_ones():
    sizes = {name: known.rows.get("test") for name, known in PUBLIC_SETS.items() if known.task == "search"}
    assert sizes == {
        **{"nq": 3610, "triviaqa": 11_313, "popqa": 14_267, "hotpotqa": 7405, "2wikimultihopqa": 12_576},
        **{"musique": 2417, "bamboogle": 125, "nq_hotpotqa": None},
    }
    assert PUBLIC_SETS["nq_hotpotqa"].rows["train"] == 79_168 + 90_447
    assert all(
        file.address.startswith(("https://", "hf://"))
        for s in PUBLIC_SETS.values()
        for f in s.files.values()
        for file in f
    )


def test_a_file_of_the_hub(tmp_path, monkeypatch, served):
    """hf://datasets/<owner>/<name>/<file>, by the hub's own client, against a server that answers as the hub does."""
    from huggingface_hub import constants

    content, url = served
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    content["/datasets/me/set/resolve/main/a/test.jsonl"] = b'{"id": 1}\n'
    assert [row for _, row in read_rows("hf://datasets/me/set/a/test.jsonl")] == [{"id": 1}]
    content["/datasets/me/set/resolve/v2/a/test.jsonl"] = b'{"id": 2}\n'
    assert [row for _, row in read_rows("hf://datasets/me/set@v2/a/test.jsonl")] == [{"id": 2}]
    with pytest.raises(TaskDataError, match=r"hf://datasets/me/set/none.jsonl: cannot be downloaded"):
        list(read_rows("hf://datasets/me/set/none.jsonl"))
    monkeypatch.setenv("AGENT_RL_OFFLINE", "1")
    with pytest.raises(TaskDataError, match="AGENT_RL_OFFLINE"):
        list(read_rows("hf://datasets/me/set/other.jsonl"))
    with pytest.raises(TaskDataError, match="write hf://datasets/<owner>/<name>/<file>"):
        list(read_rows("hf://datasets/me"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", b"", "holds no rows"),
        ("x.jsonl", b'{"a": 1}\n{"a"', "x.jsonl:2: not JSON"),
        ("x.jsonl", b"[1]\n", "x.jsonl:1: should be an object, not list"),
        ("x.jsonl", b'{"a": "\xff"}\n', "unreadable after line 0"),
        ("x.jsonl.gz", b"not gzip", "unreadable"),
        ("x.json", b'{"a": 1}', "should be a list of objects, not dict"),
        ("x.json", b"[1]", "row 1: should be an object, not int"),
        ("x.parquet", b"PAR0", "not a parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskDataError, match=words):
        list(read_rows(tmp_path / name))


def test_compressed_rows(tmp_path):
    with gzip.open(tmp_path / "x.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('\ufeff{"a": 1}\n\n{"a": 2}\n')
    assert [(where.rpartition(":")[2], row["a"]) for where, row in read_rows(tmp_path / "x.jsonl.gz")] == [
        ("1", 1),
        ("3", 2),
    ]

"""The server as a process: starting, refusing to start, ending."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage
from retrieval_index.encoder import EncoderSpec
from retrieval_index.fetch import MINILM, is_fetched
from tools.listen import ServeError, bind, is_loopback, read_token
from tools.server import main

ROOT = Path(__file__).resolve().parents[2]


def test_help_does_not_import_torch():
    code = (
        "import sys, tools.server\n"
        "try: tools.server.main(['--help'])\n"
        "except SystemExit: pass\n"
        "bad = {'torch', 'faiss', 'transformers', 'sentence_transformers', 'fastapi'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--token-file" in done.stdout


def test_a_port_in_use_is_one_readable_error(index_folder, capsys):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["--index", str(index_folder), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in said
    assert said.count("\n") == 1


def test_more_documents_than_an_index_gives_are_refused_at_once(index_folder, capsys):
    assert main(["--index", str(index_folder), "--port", "0", "--max-top-k", "5000"]) == 2
    assert "max_top_k=5000 is above 2048" in capsys.readouterr().err


def test_no_index_is_one_readable_error(tmp_path, capsys):
    assert main(["--index", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "agent-rl build-index" in capsys.readouterr().err


def test_another_address_needs_a_token(index_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("AGENT_RL_TOOL_TOKEN", raising=False)
    assert main(["--index", str(index_folder), "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "--token-file" in capsys.readouterr().err
    empty = tmp_path / "token"
    empty.write_text(" \n")
    with pytest.raises(ServeError, match="empty"):
        read_token(str(empty))
    with pytest.raises(ServeError, match="cannot be read"):
        read_token(str(tmp_path / "absent"))
    for text in ("wörd", "two\nlines", "nul\x00"):
        empty.write_text(text, encoding="utf-8")
        with pytest.raises(ServeError, match="plain ASCII"):  # no client could send it
            read_token(str(empty))
    monkeypatch.setenv("AGENT_RL_TOOL_TOKEN", "word")
    assert read_token(None) == "word"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("h", False),
    ],
)
def test_what_counts_as_loopback(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.slow
@pytest.mark.parametrize(("number", "replicas"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_it_says_one_line_when_ready_and_ends_cleanly(tmp_path, number, replicas):
    if not is_fetched(MINILM):
        pytest.skip("minilm is not in the cache; fetch it with `agent-rl fetch minilm`")
    build_index([Passage("1", "Lima", "Lima is a city.")], EncoderSpec(), tmp_path / "i", progress=False)
    command = [sys.executable, "-m", "tools.server", "--index", str(tmp_path / "i"), "--port", "0"]
    command += ["--replicas", str(replicas)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith("ready: http://127.0.0.1:"), process.stderr.read()
        assert "search" in line
        assert "(1 passages; encoder: torch, " in line
        url = line.split()[1]
        result = httpx.post(f"{url}/retrieve", json={"queries": ["Lima", "Peru"]}, trust_env=False).json()
        assert [len(documents) for documents in result["result"]] == [1, 1]
        assert httpx.get(f"{url}/health", trust_env=False).json()["index"]["replicas"] == replicas
        process.send_signal(number)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (0, "", "")


@pytest.mark.slow
def test_an_index_that_cannot_be_opened_ends_the_process(index_folder):
    # this index names an encoder that only tests have: its manifest is fine, opening it is not possible
    command = [sys.executable, "-m", "tools.server", "--index", str(index_folder), "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: encoder.path='hashed-words'")
    assert done.stderr.count("\n") == 1


def test_a_free_port_is_found():
    with bind("127.0.0.1", 0) as opened:
        assert opened.family == socket.AF_INET
        assert opened.getsockname()[1] > 0


def test_what_was_loaded_is_not_collected_again_and_again(tmp_path):
    """A full collection that goes through an encoder's objects stops every answer for a third of a second."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as made:
        made.execute("CREATE TABLE towns (name)")
    code = (
        "import gc, os, signal, sys\n"
        "from tools.server import serve\n"
        "def say(line):\n"
        "    print(gc.get_freeze_count(), len(gc.get_objects()))\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "serve(['sql'], port=0, sql={'databases': {'main': sys.argv[1]}}, say=say)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    frozen, looked_at = map(int, done.stdout.split())
    assert frozen > 10 * looked_at

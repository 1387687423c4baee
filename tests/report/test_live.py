"""A run in progress: in the terminal, and as a page on loopback."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import sys
import threading
import time

import httpx
import pytest

from agent_rl.cli import main
from agent_rl.errors import UsageError
from agent_rl.report.run_data import read_run
from agent_rl.report.serve import ReportServer
from agent_rl.report.watch import make_console, once, screen


def shown(run, *, width: int = 100, height: int = 50, whole: bool = False) -> str:
    console = make_console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    found = read_run(run)
    console.print(once(found, console) if whole else screen(found, console))
    return console.file.getvalue()


def test_watch_shows_numbers_curves_and_trajectories(tmp_path, made) -> None:
    text = shown(made.run(tmp_path / "demo"), whole=True)
    assert "step 12 of ?   EM 0.6" in text
    assert "nothing looks wrong" in text
    assert "-0.90┤" in text, "the first reward"
    assert "0.20┤" in text, "the last reward"
    assert "entropy, nats: no value yet" in text
    assert "step 12, reward -1, answer, gold Ann" in text


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (200, 70)])
def test_watch_fits_any_terminal(tmp_path, made, width, height) -> None:
    lines = shown(made.run(tmp_path / "demo"), width=width, height=height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_watch_obeys_no_escape_of_a_model(tmp_path, made) -> None:
    run = made.run(tmp_path / "demo")
    rows = [made.trajectory(12, 0, 1.0, "a\x1b]0;owned\x07b[red]c:smile:\u202e", gold=["\x1b[2J"])]
    made.write_jsonl(run / "trajectories/step_000012.jsonl.gz", rows)
    text = shown(run, whole=True)
    assert "a␛]0;owned␇b[red]c:smile:⟨U+202E⟩" in text
    assert "\x1b" not in text


def test_watch_of_a_run_that_has_just_begun(tmp_path) -> None:
    (tmp_path / "config.yaml").write_text("algo: {name: grpo}\n")
    assert "no step yet" in shown(tmp_path, whole=True)
    (tmp_path / "metrics.jsonl").write_text('{"phase": "warmup", "step": -3, "warmup/loss": 2.0}\n')
    assert "warm-up, 3 updates to go" in shown(tmp_path, whole=True)


def test_watch_without_a_terminal_says_so(tmp_path, made, capsys) -> None:
    run = made.run(tmp_path / "demo")
    assert main(["watch", str(run)]) == 2
    assert "--once" in capsys.readouterr().err
    assert main(["watch", str(run), "--once"]) == 0
    assert "step 12" in capsys.readouterr().out


def test_watch_in_a_terminal(tmp_path, made) -> None:
    """The whole screen of a real terminal: it follows the run, and Ctrl-C gives the terminal back."""
    run = made.run(tmp_path / "demo")
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="40")
        os.execv(sys.executable, [sys.executable, "-m", "agent_rl.cli", "watch", str(run), "--every", "0.2"])
    seen = bytearray()

    def read_until(wanted: bytes) -> None:
        ends = time.monotonic() + 60
        while wanted not in seen:
            assert time.monotonic() < ends, bytes(seen[-2000:])
            if select.select([terminal], [], [], 0.2)[0]:
                seen.extend(os.read(terminal, 65536))

    try:
        read_until(b"step 12 of")
        assert b"\x1b[?1049h" in seen, "a screen of its own"
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"phase": "train", "step": 13, "reward/mean": 0.5}) + "\n")
        read_until(b"step 13 of")
        os.write(terminal, b"\x03")
        read_until(b"\x1b[?1049l")
        ended = time.monotonic() + 30
        while not (found := os.waitpid(child, os.WNOHANG))[0]:
            assert time.monotonic() < ended
            time.sleep(0.02)
        assert os.waitstatus_to_exitcode(found[1]) in (0, 130)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(terminal)


@pytest.fixture
def served(tmp_path, made):
    run = made.run(tmp_path / "demo")
    with ReportServer([run], None, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield run, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_served_page_follows_the_run(served) -> None:
    run, address = served
    first = httpx.get(address)
    assert first.status_code == 200
    assert "connect-src 'self'" in first.text
    version = httpx.get(f"{address}/version").text
    assert httpx.get(f"{address}/version").text == version
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"phase": "train", "step": 13, "reward/mean": 0.77123}) + "\n")
    assert httpx.get(f"{address}/version").text != version
    assert "0.77123" not in first.text
    assert "0.77123" in httpx.get(address).text
    (run / "metrics.jsonl").write_text("x\n{}\n")
    broken = httpx.get(address)
    assert (broken.status_code, broken.headers["content-type"]) == (500, "text/plain; charset=utf-8")
    assert httpx.get(f"{address}/../../etc/passwd").status_code == 404


def test_served_page_answers_this_machine_only(served) -> None:
    """A name that somebody else's name server points at 127.0.0.1 must not read the run."""
    _, address = served
    assert httpx.get(address, headers={"Host": "evil.example:80"}).status_code == 403
    assert httpx.get(address, headers={"Host": f"localhost:{address.rpartition(':')[2]}"}).status_code == 200


def test_port_that_is_taken(served, tmp_path) -> None:
    run, address = served
    with pytest.raises(UsageError, match=r"cannot be opened on 127\.0\.0\.1"):
        ReportServer([run], None, int(address.rpartition(":")[2]))

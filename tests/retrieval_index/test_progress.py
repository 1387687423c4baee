"""Progress where there is no terminal: plain lines, few of them."""

from __future__ import annotations

import io

from retrieval_index import progress
from retrieval_index.progress import Progress


def test_elsewhere_than_on_a_terminal_it_prints_plain_lines(monkeypatch):
    out = io.StringIO()
    with Progress("encoding", 100, "passages", stream=out) as shown:
        shown.advance(10)
        assert out.getvalue() == ""  # the last line is not old enough
        monkeypatch.setattr(progress, "PLAIN_LINE_EVERY_S", 0.0)
        shown.advance(30)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("encoding: 40/100 passages (")
    assert "passages/s" in line
    assert "s left" in line


def test_resumed_bytes_do_not_count_as_speed(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress, "PLAIN_LINE_EVERY_S", 0.0)
    with Progress("model", 100 << 20, "B", done=60 << 20, stream=out) as shown:
        shown._started -= 10
        shown.advance(10 << 20)
    assert out.getvalue() == "model: 70.0/100.0 MiB (1.0 MiB/s, 30 s left)\n"


def test_it_can_be_silent():
    out = io.StringIO()
    with Progress("x", 1, "passages", enabled=False, stream=out) as shown:
        shown.advance(1)
    assert out.getvalue() == ""

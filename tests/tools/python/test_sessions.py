"""Sessions: what is kept, from whom it is kept, and when it ends."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest


def test_definitions_and_files_stay_within_a_session(python) -> None:
    python.run("import math\ndef area(r): return round(math.pi * r * r, 2)\nopen('note', 'w').write('hello')", "stay")
    assert python.run("area(2), open('note').read()", "stay")["text"] == "(12.57, 'hello')\n"
    failed = python.run("y = 1\n1 / 0", "stay")
    assert failed["status"] == "error"
    assert 'File "<cell 3>", line 2' in failed["text"]
    assert python.run("y", "stay")["text"] == "1\n"


def test_without_a_session_nothing_stays(python) -> None:
    python.run("x = 1\nopen('left', 'w').close()")
    assert python.run("x")["data"]["exception"] == "NameError"
    assert python.run("import os; os.listdir('.')")["text"] == "[]\n"


def test_concurrent_sessions_never_see_each_other(python) -> None:
    look = (
        "import os, sys\nfound = sorted(os.listdir('.')), sorted(n for n in globals() if n.startswith('mine_')), "
        "[m for m in sys.modules if m.startswith('only_')]\nfound"
    )

    def one(n: int) -> list[str]:
        session, texts = f"concurrent-{n}", []
        for turn in range(3):
            python.run(f"mine_{n}_{turn} = {n}\nopen('file_{n}_{turn}', 'w').close()", session)
            python.run(f"open('only_{n}.py', 'w').write('x = {n}')\nimport only_{n}", session)
            texts.append(python.run(look, session)["text"])
        return texts

    with ThreadPoolExecutor(8) as pool:
        for n, texts in enumerate(pool.map(one, range(16))):
            for turn, text in enumerate(texts):
                files = sorted([*(f"file_{n}_{t}" for t in range(turn + 1)), f"only_{n}.py"])
                names = [f"mine_{n}_{t}" for t in range(turn + 1)]
                assert text == f"{(files, names, [f'only_{n}'])}\n"
    python.post("/v1/end_session", {"sessions": [f"concurrent-{n}" for n in range(16)]})


@pytest.mark.slow
def test_calls_of_one_session_run_one_after_the_other(serve) -> None:
    with serve(workers=4, timeout_s=5) as python, ThreadPoolExecutor(6) as pool:
        python.run("seen = []", "line")
        code = "import time\nseen.append('in'); time.sleep(0.1); seen.append('out')"
        results = list(pool.map(lambda _: python.run(code, "line"), range(6)))
        assert all(result["status"] == "ok" and result["elapsed_s"] < 0.3 for result in results)
        assert python.run("seen == ['in', 'out'] * 6", "line")["text"] == "True\n"


def test_a_session_killed_by_a_limit_says_so_and_starts_clean(serve) -> None:
    with serve(timeout_s=0.5) as python:
        python.run("x = 1\nopen('file', 'w').close()", "killed")
        result = python.run("while True: pass", "killed")
        assert result["status"] == "timeout"
        assert result["text"] == (
            "[stopped: it ran longer than 0.5 s]\n"
            "[the session has ended: its variables and files are gone; the next call starts clean]"
        )
        clean = python.run("import os\n'x' in globals(), os.listdir('.')", "killed")
        assert clean["text"] == "(False, [])\n"


def test_a_session_ends_when_it_is_told_to(python) -> None:
    before = python.health()["tools"]["python"]["sessions"]
    python.run("x = 1", "told")
    assert python.health()["tools"]["python"]["sessions"] == before + 1
    assert python.post("/v1/end_session", {"sessions": ["told", "never there"]}) == {"ended": 2}
    assert python.health()["tools"]["python"]["sessions"] == before
    assert python.run("x", "told")["data"]["exception"] == "NameError"
    python.post("/v1/end_session", {"sessions": ["told"]})


def test_an_end_in_the_middle_of_a_call(serve) -> None:
    with serve(timeout_s=20) as python, ThreadPoolExecutor(1) as pool:
        running = pool.submit(python.run, "import time; time.sleep(15)", "ended")
        time.sleep(0.4)
        python.post("/v1/end_session", {"sessions": ["ended"]})
        assert running.result(timeout=5)["status"] == "error"
        assert python.health()["tools"]["python"]["sessions"] == 0


@pytest.mark.parametrize(
    ("body", "names"), [({}, "sessions"), ({"sessions": []}, "sessions"), ({"sessions": [1]}, "sessions[0]")]
)
def test_a_bad_end_names_the_field(python, body: dict, names: str) -> None:
    answer = python.http.post("/v1/end_session", json=body)
    assert answer.status_code == 422
    assert names in answer.json()["error"]


@pytest.mark.slow
def test_an_idle_session_is_ended_and_its_next_call_says_so(serve) -> None:
    with serve(session_idle_s=0.4) as python:
        python.run("x = 1", "idle")
        deadline = time.monotonic() + 5
        while python.health()["tools"]["python"]["sessions"] and time.monotonic() < deadline:
            time.sleep(0.05)
        result = python.run("'x' in globals()", "idle")
        assert result["text"] == "[the session had ended: no call for too long; this call started clean]\nFalse\n"
        assert python.run("1", "idle")["text"] == "1\n"


def test_no_more_sessions_than_allowed_are_opened(serve) -> None:
    with serve(max_sessions=2) as python:
        assert python.run("1", "a")["status"] == python.run("1", "b")["status"] == "ok"
        refused = python.run("1", "c")
        assert refused["status"] == "overloaded"
        assert "2 sessions are open" in refused["text"]
        assert python.run("1")["status"] == "ok"
        python.post("/v1/end_session", {"sessions": ["a"]})
        assert python.run("1", "c")["status"] == "ok"


def test_stateless_by_configuration(serve) -> None:
    with serve(stateful=False) as python:
        python.run("x = 1", "s")
        assert python.run("x", "s")["data"]["exception"] == "NameError"
        assert python.health()["tools"]["python"]["sessions"] == 0


def test_threads_of_a_session_rest_between_its_calls(python) -> None:
    code = (
        "import threading, time\nticks = [0]\n"
        "def tick():\n    while True: ticks[0] += 1; time.sleep(0.001)\n"
        "threading.Thread(target=tick, daemon=True).start()\ntime.sleep(0.05)"
    )
    python.run(code, "threads")
    before = int(python.run("ticks[0]", "threads")["text"])
    time.sleep(0.5)
    assert int(python.run("ticks[0]", "threads")["text"]) - before < 50
    python.post("/v1/end_session", {"sessions": ["threads"]})


def test_two_sandboxes_do_not_draw_the_same_numbers(serve) -> None:
    draw = "import numpy, random\nfloat(numpy.random.rand()), random.random()"
    with serve(preload=("numpy", "numpy.random")) as python:
        texts = {python.run(draw)["text"] for _ in range(4)}
    values = [eval(text) for text in texts]
    assert len({a for a, _ in values}) == len({b for _, b in values}) == 4


def test_an_interpreter_that_dies_between_calls_is_a_failure_of_the_machine(serve) -> None:
    """Never an observation: the model did nothing wrong."""
    die_soon = "import threading, os\nthreading.Timer(0.05, os._exit, (1,)).start()"
    with serve() as python:
        assert python.run(f"x = 1\n{die_soon}\nimport time", "dies")["status"] == "ok"
        time.sleep(0.2)  # it rests, so the timer fires within the next call
        result = python.run("import time; time.sleep(1)", "dies")
        assert result["status"] == "error"
        assert "exit code 1" in result["text"]

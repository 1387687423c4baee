"""jsonl questions: what is read, what is refused and with which words, and the seeded hold-out."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tasks.base import TaskDataError
from tasks.search.data import JsonlQuestions, gold_answers, read_jsonl

DATA = Path(__file__).parents[2].parent / "shared/data/qa_questions"
ROW = {"id": "q1", "question": "Who?", "golden_answers": ["Ann"]}


def write(path: Path, *rows) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(path)


def rows(count: int):
    return [{"id": i, "question": f"Question {i}?", "golden_answers": "x"} for i in range(count)]


@pytest.mark.parametrize("value", ["Paris", ["Paris"], ("Paris",), np.array(["Paris"]), np.array("Paris")])
def test_gold_comes_in_many_shapes(value):
    """B45: a text, a list and an array mean the same."""
    assert gold_answers(value) == ("Paris",)


@pytest.mark.parametrize("value", [[], "", [""], None, 3, [3], {"a": 1}])
def test_gold_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match=r"not|answer"):
        gold_answers(value)


def test_reads_bom_blank_lines_crlf_and_further_keys(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({**ROW, "type": "bridge"}).encode() + b"\r\n\r\n")
    (item,) = read_jsonl(path)
    assert (item.id, item.question, item.gold, item.meta) == ("q1", "Who?", ("Ann",), {"type": "bridge"})


def test_reads_gzip(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(ROW))
    assert len(list(read_jsonl(tmp_path / "a.jsonl.gz"))) == 1


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("{", "a.jsonl:3: not JSON"),
        ("[1]", "a.jsonl:3: should be an object, not list"),
        ({"id": 2, "golden_answers": "x"}, "a.jsonl:3: key 'question' is missing"),
        ({"id": 2, "question": "Q", "answer": "x"}, "a.jsonl:3: key 'golden_answers' is missing"),
        ({"question": "Q", "golden_answers": "x"}, "a.jsonl:3: key 'id' is missing"),
        ({"id": 2, "question": " ", "golden_answers": "x"}, "a.jsonl:3: 'question'"),
        ({"id": 2, "question": "Q", "golden_answers": []}, "a.jsonl:3: 'golden_answers'"),
        ({"id": 2, "question": "Q", "golden_answers": "x", "oracle": "q"}, "a.jsonl:3: 'oracle'"),
        (ROW, "a.jsonl:3: id 'q1' was used on line 1"),
        ('{"id": 2, "question": "\\ud800", "golden_answers": "x"}', "a.jsonl:3: holds a lone surrogate"),
        ('{"id": ' + "9" * 5000 + "}", "a.jsonl:3: not JSON"),
        ("[" * 100_000, "a.jsonl:3: not JSON"),
    ],
)
def test_bad_row_is_named_by_file_line_and_key(tmp_path, second, words):
    path = write(tmp_path / "a.jsonl", ROW, "", second)
    with pytest.raises(TaskDataError) as error:
        list(read_jsonl(path))
    assert words in str(error.value)


def test_missing_empty_and_binary_files_are_refused(tmp_path):
    with pytest.raises(TaskDataError, match="no such file"):
        list(read_jsonl(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskDataError, match="no rows"):
        list(read_jsonl(tmp_path / "empty.jsonl"))
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskDataError, match="unreadable"):
        list(read_jsonl(tmp_path / "a.jsonl"))
    (tmp_path / "a.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(TaskDataError, match="unreadable"):
        list(read_jsonl(tmp_path / "a.jsonl.gz"))


def test_a_gzip_file_that_is_damaged_inside_is_refused(tmp_path):
    content = bytearray(gzip.compress("".join(json.dumps(row) + "\n" for row in rows(2000)).encode()))
    content[10:50] = b"\xff" * 40  # behind the header
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    with pytest.raises(TaskDataError, match=r"a\.jsonl\.gz: unreadable after line"):
        list(read_jsonl(tmp_path / "a.jsonl.gz"))


def test_hold_out_is_disjoint_whole_and_independent_of_order(tmp_path):
    everything = rows(1000)
    shuffled = random.Random(0).sample(everything, 1000)
    split_ids = []
    for order in (everything, shuffled):
        source = JsonlQuestions(write(tmp_path / "t.jsonl", *order), None, None, 0.2)
        split_ids.append({split: {item.id for item in source.items(split)} for split in ("train", "dev", "test")})
    assert split_ids[0] == split_ids[1]
    assert sorted(i for ids in split_ids[0].values() for i in ids) == sorted(str(i) for i in range(1000))
    assert [len(split_ids[0][split]) for split in ("train", "dev", "test")] == pytest.approx([800, 100, 100], abs=35)


def test_hold_out_goes_whole_to_the_split_without_a_file(tmp_path):
    train, test = write(tmp_path / "t.jsonl", *rows(1000)), write(tmp_path / "test.jsonl", ROW)
    source = JsonlQuestions(train, None, test, 0.2)
    assert len(source.items("dev")) == pytest.approx(200, abs=40)
    assert [item.id for item in source.items("test")] == ["q1"]
    both = JsonlQuestions(train, write(tmp_path / "dev.jsonl", ROW), test, 0.2)
    assert len(both.items("train")) == 1000


def test_repeated_question_never_stands_on_both_sides(tmp_path):
    doubled = rows(300) + [
        {**row, "id": f"again-{row['id']}", "question": row["question"].upper()} for row in rows(300)
    ]
    source = JsonlQuestions(write(tmp_path / "t.jsonl", *doubled), None, None, 0.3)
    sides = Counter()
    for split in ("train", "dev", "test"):
        for question in {item.question.lower() for item in source.items(split)}:
            sides[question] += 1
    assert set(sides.values()) == {1}


def test_impossible_splits_say_what_to_set(tmp_path):
    with pytest.raises(TaskDataError, match=r"task\.data\.train"):
        JsonlQuestions(None, None, None, 0.2)
    only_test = JsonlQuestions(None, None, write(tmp_path / "a.jsonl", ROW), 0.2)
    with pytest.raises(TaskDataError, match=r"task\.data\.dev"):
        only_test.items("dev")
    none_held_out = JsonlQuestions(write(tmp_path / "b.jsonl", ROW), None, None, 0.0)
    with pytest.raises(TaskDataError, match=r"eval_fraction=0\.0"):
        none_held_out.items("dev")
    with pytest.raises(TaskDataError, match="validation"):
        only_test.items("validation")


def test_real_sets_are_read_whole():
    files = sorted(DATA.glob("*.jsonl"))
    if not files:
        pytest.skip(f"real question sets are not at {DATA}")
    for path in files:
        items = list(read_jsonl(path))
        assert len(items) > 50
        assert all(item.gold for item in items)

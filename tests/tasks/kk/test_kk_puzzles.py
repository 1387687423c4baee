"""Statements, the solver, the generator and its wording; the public puzzles."""

from __future__ import annotations

import itertools
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.base import TaskDataError
from tasks.draw import Draw
from tasks.kk import KKTask
from tasks.kk.data import read_puzzle
from tasks.kk.generator import NoMorePuzzles, puzzles
from tasks.kk.statements import solve, truth_table
from tasks.kk.wording import NAMES, puzzle_text, say
from tasks.rows import read_rows

DATA = Path(__file__).parents[3].parent / "shared/data/kk"
FIRST = (
    (("not", ("lying", 0)), ("and", ("telling-truth", 2), ("lying", 1)), ("->", ("lying", 1), ("lying", 0))),
    (True, False, False),
)


def holds(statement, knights) -> bool:
    """The meaning of a statement, written down a second time."""
    match statement:
        case ("telling-truth", person):
            return knights[person]
        case ("lying", person):
            return not knights[person]
        case ("not", part):
            return not holds(part, knights)
        case ("and", *parts):
            return all(holds(part, knights) for part in parts)
        case ("or", *parts):
            return any(holds(part, knights) for part in parts)
        case ("->", premise, conclusion):
            return holds(conclusion, knights) if holds(premise, knights) else True
        case ("<=>", left, right):
            return holds(left, knights) == holds(right, knights)
    raise AssertionError(statement)


def fits(statements, knights) -> bool:
    return all(holds(statement, knights) == knight for statement, knight in zip(statements, knights, strict=True))


def statements_about(people: int):
    leaf = st.tuples(st.sampled_from(["telling-truth", "lying"]), st.integers(0, people - 1))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.just("not"), inner),
            st.tuples(st.sampled_from(["and", "or", "->", "<=>"]), inner, inner),
            st.tuples(st.sampled_from(["and", "or"]), inner, inner, inner),
        ),
        max_leaves=6,
    )


@given(st.lists(statements_about(3), min_size=3, max_size=3))
def test_the_solver_finds_every_assignment_that_fits(statements):
    brute = [knights for knights in itertools.product([False, True], repeat=3) if fits(statements, knights)]
    assert sorted(solve(statements)) == brute


@pytest.mark.parametrize(
    "statement",
    [
        ("telling-truth", 3),
        ("telling-truth", -1),
        ("telling-truth", True),
        ("maybe", 0),
        ("and", ("lying", 0)),
        ("not",),
        "lying",
        ("->", ("lying", 0)),
        (),
    ],
)
def test_what_is_no_statement_is_refused(statement):
    with pytest.raises(ValueError, match=r"statement|person"):
        truth_table(statement, 3)


def test_every_public_puzzle_has_the_recorded_solution_alone():
    files = sorted(DATA.glob("*.jsonl*"))
    if not files:
        pytest.skip(f"public puzzles are not at {DATA}")
    seen = 0
    task = KKTask({"kind": "files", "train": list(map(str, files)), "dev": [], "test": []})
    for item in task.items("train"):  # reading compares the statements' solutions with the recorded one
        assert item.meta["statements"] is not None
        task.validate(item)
        seen += 1
    assert seen == 2991


@pytest.mark.parametrize(("people", "count"), [(3, 1500), (4, 600), (5, 600), (6, 600), (7, 600), (8, 300)])
def test_generated_puzzles_have_one_solution_and_never_repeat(people, count):
    found = list(islice(puzzles(0, "train", people), count))
    assert len({puzzle.statements for puzzle in found}) == count
    for puzzle in found:
        assert solve(puzzle.statements) == [puzzle.solution]
    assert {knight for puzzle in found for knight in puzzle.solution} == {True, False}


def test_a_brute_force_without_tables_agrees():
    for puzzle in islice(puzzles(3, "test", 4, depth=3, width=3), 50):
        everyone = itertools.product([False, True], repeat=4)
        assert [knights for knights in everyone if fits(puzzle.statements, knights)] == [puzzle.solution]


def test_two_people_have_few_puzzles_and_say_so():
    with pytest.raises(NoMorePuzzles, match="2 people"):
        list(puzzles(0, "train", 2))
    small = KKTask(
        {"kind": "generated", "seed": 0, "people": [2], "depth": 2, "width": 2, "train": 9999, "dev": 1, "test": 1}
    )
    with pytest.raises(TaskDataError, match=r"task\.data\.train=9999.*2 people"):
        small.items("train")


def test_the_splits_share_no_puzzle_whatever_the_seeds():
    def logic(seed, split):
        return {tuple(truth_table(s, 3) for s in p.statements) for p in islice(puzzles(seed, split, 3), 400)}

    train, dev, test = logic(1, "train"), logic(2, "dev"), logic(0, "test")
    assert not train & test
    assert not train & dev
    assert not dev & test


@pytest.mark.parametrize(("depth", "width"), [(2, 2), (2, 4), (4, 2)])
def test_depth_and_width_are_kept(depth, width):
    def deep(statement):
        parts = [part for part in statement[1:] if isinstance(part, tuple)]
        return 1 + max(map(deep, parts), default=0)

    def wide(statement):
        parts = [part for part in statement[1:] if isinstance(part, tuple)]
        return max([len(parts), *map(wide, parts)])

    spoken = [s for p in islice(puzzles(0, "train", 5, depth=depth, width=width), 200) for s in p.statements]
    assert max(map(deep, spoken)) == depth
    assert max(map(wide, spoken)) == width


@pytest.mark.parametrize("settings", [{"people": 1}, {"people": 9}, {"depth": 1}, {"width": 1}])
def test_settings_out_of_range_are_named(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}={next(iter(settings.values()))}"):
        puzzles(0, "train", **{"people": 3, **settings})


def test_the_same_seed_gives_the_same_bytes():
    def whole(seed):
        data = {
            "kind": "generated",
            "seed": seed,
            "people": [3, 5],
            "depth": 2,
            "width": 2,
            "train": 40,
            "dev": 5,
            "test": 5,
        }
        return repr([KKTask(data).items(split) for split in ("train", "dev", "test")])

    assert whole(7) == whole(7) != whole(8)
    # Fixed for ever: a stored run names its puzzles by seed alone.
    puzzle = next(puzzles(0, "train", 3))
    assert (puzzle.statements, puzzle.solution) == FIRST


@given(statements_about(3), statements_about(3))
def test_a_sentence_has_one_reading(one, other):
    """Statements that differ in meaning differ in words."""
    names = NAMES[:3]
    if say(one, names) == say(other, names):
        assert truth_table(one, 3) == truth_table(other, 3)


def test_the_riddle_names_everybody_and_says_everything():
    puzzle = next(puzzles(0, "train", 4))
    text = puzzle_text(puzzle, NAMES[:4], Draw("x"))
    for name, statement in zip(NAMES, puzzle.statements, strict=False):
        assert name in text
        assert say(statement, NAMES[:4]) in text


ROW = {"quiz": "?", "names": ["Al", "Bo"], "solution": [True, False], "statements": "(('lying', 1), ('lying', 0))"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quiz": None}, "'quiz' is missing"),
        ({"names": ["Al", "al"]}, "one name twice"),
        ({"names": "Al"}, "list of names"),
        ({"solution": [1, 0]}, "list of true and false"),
        ({"solution": [True]}, "1 values for 2 names"),
        ({"statements": "(("}, "cannot be read"),
        ({"statements": [["lying", 1], ["lying", 5]]}, "person 5"),
        ({"statements": [["lying", 1], ["telling-truth", 0]]}, "have the solutions"),
    ],
)
def test_a_bad_row_is_named(change, words):
    with pytest.raises(TaskDataError, match=f"f:3.*{words}"):
        read_puzzle(ROW | change, "f:3")


def test_the_public_parquet_layout_is_read(tmp_path):
    """Logic-RL's files: statements as text, the prompt a lone message that has had its template already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ready = "<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n<think>"
    row = ROW | {"statements": "(('->', ('lying', 1), ('telling-truth', 0)), ('lying', 0))"}
    row |= {"prompt": [{"role": "user", "content": ready}]}
    pq.write_table(pa.Table.from_pylist([row, row | {"quiz": "??"}]), tmp_path / "train.parquet")
    files = {"train": [str(tmp_path / "train.parquet")], "dev": [], "test": []}
    task = KKTask({"kind": "files", **files}, prompt="dataset")
    one, other = task.items("train")
    assert one.id != other.id
    assert one.id == read_puzzle(row, "x").id
    assert task.messages(one) == [{"role": "raw", "content": ready}]
    task.validate(one)
    assert [where.rpartition(": ")[2] for where, _ in read_rows(tmp_path / "train.parquet")] == ["row 1", "row 2"]

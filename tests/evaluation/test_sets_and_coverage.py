"""Several sets in one evaluation, and what of them an index can answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rl.cli import main
from agent_rl.config.schema import RunConfig
from agent_rl.errors import ArtifactError, UsageError
from agent_rl.evaluation.coverage import Covered, cover, gold_titles, read_answerable, table, write
from agent_rl.evaluation.sets import items_of_sets
from retrieval_index.builder import build_index
from retrieval_index.corpus import Passage, PassageStore
from retrieval_index.retriever import Retriever
from retrieval_index.testing import HashedWordsEncoder
from tasks.base import TaskItem


def write_set(path: Path, count: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": str(n), "question": f"{path.stem} {n}?", "golden_answers": [str(n)]} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_sets_are_named_and_drawn_by_a_seed(tmp_path: Path) -> None:
    sets = [write_set(tmp_path / "nq.jsonl", 30), str(Path(write_set(tmp_path / "hotpot" / "test.jsonl", 3)).parent)]
    config = RunConfig()
    items = items_of_sets(config, sets, 5)
    assert [item.meta["set"] for item in items] == ["nq"] * 5 + ["hotpot"] * 3
    assert items[-1].id == "hotpot/2"
    assert [item.id for item in items] == [item.id for item in items_of_sets(config, sets, 5)]
    assert [item.id for item in items[:5]] == [item.id for item in items_of_sets(config, sets[:1], 5)]
    other = RunConfig.model_validate({"eval": {"seed": 1}})
    assert [item.id for item in items] != [item.id for item in items_of_sets(other, sets, 5)]
    assert len(items_of_sets(config, sets, None)) == 33


def test_a_set_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.jsonl does not exist"):
        items_of_sets(RunConfig(), [str(tmp_path / "nowhere.jsonl")], None)
    with pytest.raises(UsageError, match=r"has neither test.jsonl nor dev.jsonl"):
        items_of_sets(RunConfig(), [str(tmp_path)], None)
    twice = [write_set(tmp_path / folder / "nq.jsonl", 1) for folder in "ab"]
    with pytest.raises(UsageError, match=r"are both called 'nq'"):
        items_of_sets(RunConfig(), twice, None)


PASSAGES = [
    Passage("0", "Anna Berg", "Anna Berg was born in Port of Spain."),
    Passage("1", "Port of Spain", "Port of Spain is a town."),
    Passage("2", "Karl Lund", "Karl Lund lived in Oslofjorden."),
]


def item(name: str, question: str, *gold: str, **meta) -> TaskItem:
    return TaskItem(name, question, gold, meta)


ITEMS = [
    item("a", "Where was Anna Berg born?", "Port of Spain", supporting_titles=["Anna Berg", "Port of Spain"]),
    item("b", "Who is Nobody?", "Port of Spain", supporting_titles=["Anna Berg", "Nobody"]),
    item("c", "Where did Karl Lund live?", "Oslo"),  # only inside a longer word
    item("d", "Is Port of Spain a town?", "yes"),
    item("e", "Where was Anna Berg born?", "nowhere", "the Port of Spain!"),
]


def test_what_an_index_can_answer(tmp_path: Path) -> None:
    build_index(PASSAGES, HashedWordsEncoder(), tmp_path / "index", progress=False)
    ticks: list[int] = []
    retriever = Retriever.open(tmp_path / "index", HashedWordsEncoder())
    found = cover(ITEMS, retriever, PassageStore(tmp_path / "index"), [1, 3], ticks.append)
    assert sum(ticks) == len(PASSAGES) + len(ITEMS)
    by_id = {row.id: row for row in found}
    assert (by_id["a"].titles_present, by_id["a"].answer_present, by_id["a"].answerable) == (1.0, True, True)
    assert by_id["a"].recall == {1: 0.5, 3: 1.0}
    assert (by_id["b"].titles_present, by_id["b"].answer_present, by_id["b"].answerable) == (0.5, True, False)
    assert (by_id["c"].answer_present, by_id["c"].answerable) == (False, False)
    assert (by_id["d"].answer_present, by_id["d"].recall) == (None, None)
    assert by_id["e"].answerable
    assert by_id["e"].recall == {1: 1.0, 3: 1.0}
    write(found, tmp_path / "coverage.jsonl")
    assert read_answerable(str(tmp_path / "coverage.jsonl")) == {"a", "e"}
    head, _, last = table(found, [1, 3]).splitlines()
    assert head.endswith("| recall@1 | any@1 | all@1 | recall@3 | any@3 | all@3 |")
    # first: a finds one title of two, b and c none, e its answer; d has neither titles nor an answer to be found
    assert last == "| all | 5 | 0.400 | 0.500 | 0.750 | 0.375 | 0.500 | 0.250 | 0.625 | 0.750 | 0.500 |"


def test_titles_are_found_in_the_public_layouts() -> None:
    assert gold_titles(item("x", "?", "y", metadata={"supporting_facts": {"title": ["A", "B", "A"]}})) == ["A", "B"]
    assert gold_titles(item("x", "?", "y", metadata={"other": 1})) == []


def test_a_file_that_is_no_coverage(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"id": 1}\n')
    for name in ("x", "y"):
        with pytest.raises(ArtifactError, match="is not what agent-rl data coverage writes"):
            read_answerable(str(tmp_path / name))


def test_sets_have_rows_of_their_own_in_the_table() -> None:
    rows = [Covered(name, name, None, True, True, {3: 1.0}) for name in "ab"]
    assert [line.split("|")[1].strip() for line in table(rows, [3]).splitlines()] == ["set", "---", "a", "b", "all"]


def test_coverage_searches_as_the_search_tool_is_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_index(PASSAGES, HashedWordsEncoder(), tmp_path / "index", progress=False)
    sets = f"sets=[{write_set(tmp_path / 'q.jsonl', 1)}]"
    assert main(["data", "coverage", f"index={tmp_path / 'index'}", sets, "tools.search.mode=bm25"]) != 0
    assert "has no BM25 part; build it with index.bm25=true" in capsys.readouterr().err

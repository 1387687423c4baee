"""Comparisons of stored evaluations and the table: pairs by question, sets apart, errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.cli import main
from agent_rl.errors import ArtifactError, UsageError
from agent_rl.evaluation.compare import compare, compare_sets
from agent_rl.evaluation.result import EvalResult, read_result, save
from agent_rl.evaluation.summary import summarise
from agent_rl.evaluation.table import markdown


def make(label: str, ems: dict[str, list[list[float]]], answerable: set[str] | None = None) -> EvalResult:
    """Sampled evaluation; ``ems`` by set: [questions][samples]."""
    rows = [
        {
            "item_id": f"{name}/{question}",
            "set": name,
            "mode": "sampled" if len(samples) > 1 else "greedy",
            "sample": sample,
            "em": em,
            "searches": 1.0,
            "stop_reason": "answer",
            "counters": {"invalid_action": 1},
        }
        for name, questions in ems.items()
        for question, samples in enumerate(questions)
        for sample, em in enumerate(samples)
    ]
    summary = {"label": label, "questions": sum(map(len, ems.values())), **summarise(rows, answerable)}
    return EvalResult(label, summary, rows)


A = {"nq": [[0.0], [0.0], [1.0], [0.0]], "hotpot": [[1.0], [0.0]]}
B = {"nq": [[1.0], [1.0], [1.0], [1.0]], "hotpot": [[0.0], [0.0]]}


def test_the_table_has_a_column_a_set_and_their_mean() -> None:
    text = markdown([make("first", A), make("second", B)])
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    assert rows[0] == ["model", "nq", "hotpot", "Avg.", "all", "searches", "questions"]
    assert rows[2][0] == "first"
    assert rows[2][1].startswith("25.0 [")
    assert rows[2][3] == "37.5", "each set counts once"
    assert rows[2][4].startswith("33.3 ["), "each question counts once"
    assert rows[3][1] == "100.0 [100.0, 100.0]"


def test_samples_give_avg_and_pass_at_k() -> None:
    found = make("x", {"aime": [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]}).summary["sampled"]
    assert found["avg@4"]["mean"] == pytest.approx(5 / 12)
    assert found["pass@4"]["mean"] == pytest.approx(2 / 3)
    assert found["pass@2"]["mean"] == pytest.approx((0.5 + 1 + 0) / 3), "1 - C(3, 2) / C(4, 2) = 0.5"
    assert found["counters"] == {"invalid_action": 12}
    assert "pass@2" in markdown([make("x", {"aime": [[1, 0, 0, 0]]})])


def test_the_answerable_part_is_told_apart() -> None:
    result = make("x", A, answerable={"nq/2", "hotpot/0", "hotpot/1"})
    assert result.summary["greedy"]["answerable_share"] == pytest.approx(0.5)
    assert result.summary["greedy"]["answerable_em"]["mean"] == pytest.approx(2 / 3)
    assert "of the 50% that the index can answer, EM 66.7 [" in markdown([result])


def test_pairs_are_made_by_question_whatever_the_order() -> None:
    first, second = make("first", A), make("second", B)
    shuffled = EvalResult("second", second.summary, second.rows[::-1])
    found = compare(first, shuffled)["greedy_em"]
    assert (found["better"], found["worse"], found["questions"]) == (3, 1, 6)
    assert found["mean"] == pytest.approx(2 / 6)
    by_set = compare_sets(first, shuffled)
    assert by_set["nq"]["greedy_em"]["mean"] == pytest.approx(0.75)
    assert by_set["hotpot"]["greedy_em"]["mean"] == pytest.approx(-0.5)


def test_other_questions_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match=r"have other questions \(1 only in the first, 0 only in the second\)"):
        compare(make("first", A), make("second", {**B, "hotpot": [[0.0]]}))
    with pytest.raises(UsageError, match="no mode in common that measured 'f1'"):
        compare(make("first", A), make("second", B), "f1")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ems in (("first", A), ("second", B)):
        save(make(name, ems), tmp_path)
    paths = [str(tmp_path / f"{name}.json") for name in ("first", "second")]
    assert main(["eval", "compare", *paths, "--out", str(tmp_path / "out" / "c.json")]) == 0
    text = capsys.readouterr().out
    assert "greedy_em: +0.333 [" in text
    assert "3 questions better, 1 worse of 6" in text
    assert (tmp_path / "out" / "c.json").is_file()
    assert main(["eval", "compare", paths[0]]) == 2
    assert "two evaluations or more" in capsys.readouterr().err
    assert main(["eval", "compare", paths[0], str(tmp_path)]) == 1
    assert "one evaluation is needed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eval", "--metric", "f1"])


def test_what_is_no_evaluation_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "x.jsonl").write_text("")
    for address in ("x.json", "y.json", "z.txt"):
        with pytest.raises(ArtifactError, match=address):
            read_result(str(tmp_path / address))
    with pytest.raises(ArtifactError, match="no evaluation there"):
        read_result(str(tmp_path / "nowhere"))

"""One row of a public data set as one row of ours. Each function raises TaskDataError with the place and the key."""

from __future__ import annotations

from typing import Any

from tasks.base import TaskDataError
from tasks.kk.data import read_puzzle
from tasks.math.boxed import last_box
from tasks.math.data import read_problem
from tasks.ready_prompt import ready_prompt
from tasks.rows import need, need_text
from tasks.search.data import gold_answers

Row = dict[str, Any]
# What verl's math files add to each problem; our prompt asks in its own words.
_VERL_ASK = " Let's think step by step and output the final answer within \\boxed{}."


def question(row: Row, where: str) -> Row:
    """FlashRAG: ``id``, ``question``, ``golden_answers``; its metadata (whole contexts for some sets) are left out."""
    try:
        answers = list(gold_answers(need(row, where, "golden_answers")))
    except ValueError as error:
        raise TaskDataError(f"{where}: 'golden_answers' {error}") from error
    return {
        "id": str(need(row, where, "id")),
        "question": need_text(row, where, "question").strip(),
        "golden_answers": answers,
    }


def puzzle(row: Row, where: str) -> Row:
    """Logic-RL: the puzzle with its statements, checked by the solver, and its own prompt."""
    item = read_puzzle(row, where)
    found = {"id": item.id, "quiz": item.question, "names": item.meta["names"], "solution": item.meta["solution"]}
    found["statements"] = item.meta["statements"]
    if "prompt" in item.meta:
        (message, *more) = ready_prompt(item.meta["prompt"], where)
        found["prompt"] = message["content"] if message["role"] == "raw" and not more else item.meta["prompt"]
    return found


def problem(row: Row, where: str) -> Row:
    """Any of the layouts that ``tasks.math.data.read_problem`` knows."""
    item = read_problem(row, where)
    found: Row = {"problem": item.question, "answers": list(item.gold)}
    found |= {key: item.meta[key] for key in ("tolerance", "prompt") if key in item.meta}
    solution = item.meta.get("solution")
    if isinstance(solution, list) and len(solution) == 1:
        solution = solution[0]
    if isinstance(solution, str) and solution.strip():
        found["solution"] = solution.strip()
    name = row.get("id", row.get("unique_id"))
    return ({"id": str(name)} if name is not None else {"id": item.id}) | found


def verl_problem(row: Row, where: str) -> Row:
    """DSR: the problem without the request that verl's preparation put behind it; the whole stays as ``prompt``."""
    found = problem(row, where)
    found["problem"] = found["problem"].removesuffix(_VERL_ASK.strip()).rstrip()
    return found


def boxed_solution(row: Row, where: str) -> Row:
    """Minerva: the gold is the box of the solution."""
    gold = last_box(need_text(row, where, "solution"))
    if gold is None:
        raise TaskDataError(f"{where}: 'solution' has no \\boxed{{}} to take the answer from")
    return problem({**row, "answer": gold, "id": f"minerva_{need(row, where, 'idx')}"}, where)


def gsm8k(row: Row, where: str) -> Row:
    """GSM8K: the gold stands behind ``####`` at the end of the solution."""
    solution, mark, gold = need_text(row, where, "answer").rpartition("####")
    if not mark or not gold.strip():
        raise TaskDataError(f"{where}: 'answer' has no #### with the answer behind it")
    row = {"problem": need(row, where, "question"), "answer": gold.strip(), "solution": solution.strip()}
    return problem(row, where)


def orz(row: Row, where: str) -> Row:
    """Open-Reasoner-Zero: a conversation of two, ``{"from", "value"}`` and ``{"from", "ground_truth": {"value"}}``."""
    turns = need(row, where, "turns")
    try:
        asked, truth = turns[0]["value"], turns[1]["ground_truth"]["value"]
    except (LookupError, TypeError) as error:
        raise TaskDataError(f"{where}: should be a problem and its ground truth, not {str(turns)[:200]}") from error
    return problem({"problem": asked, "answer": truth}, where)

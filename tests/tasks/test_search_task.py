"""The search task as a whole: rewards, demonstrations, prompts, validation."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from agent_rl.config.schema import SearchTask as SearchTaskConfig
from tasks.base import Task, TaskDataError, TaskItem
from tasks.search import SearchTask
from tasks.search.data import read_jsonl

MINIWIKI = {
    "kind": "miniwiki",
    "seed": 0,
    "passages": 300,
    "question_types": ["one_hop", "two_hop", "yes_no", "comparison"],
}
DATA = Path(__file__).parents[2].parent / "shared/data/qa_questions"
ITEM = TaskItem("q", "Who wrote it?", ("Ann Lee",))
RIGHT = "<search>q</search><answer>ann lee</answer>"
WRONG = "<search>q</search><answer>ann</answer>"


def task(**settings) -> SearchTask:
    return SearchTask(MINIWIKI, **settings)


def test_takes_the_config_record_as_it_is():
    built = SearchTask(**SearchTaskConfig().model_dump(exclude={"kind"}))
    assert isinstance(built, Task)
    assert (built.name, built.tools) == ("search", ("search",))
    assert built.tool_arguments == {"search": {"top_k": 3}}


@pytest.mark.parametrize(
    ("settings", "right", "wrong", "none"),
    [
        ({"reward": "em_pm1"}, 1.0, -1.0, -1.0),
        ({"reward": "em"}, 1.0, 0.0, 0.0),
        ({"reward": "f1"}, 1.0, 2 / 3, 0.0),
        ({"reward": "em", "format_bonus": 0.2}, 1.2, 0.2, 0.0),
    ],
)
def test_rewards(settings, right, wrong, none):
    scored = [task(**settings).score(ITEM, text).value for text in (RIGHT, WRONG, "I do not know")]
    assert scored == pytest.approx([right, wrong, none])


def test_no_search_penalty_falls_on_answers_without_a_search():
    penal = task(reward="em", no_search_penalty=0.5)
    assert penal.score(ITEM, "<answer>Ann Lee</answer>").value == 0.5
    assert penal.score(ITEM, "<think><search>q</search></think><answer>Ann Lee</answer>").value == 0.5
    assert penal.score(ITEM, RIGHT).value == 1.0
    assert penal.score(ITEM, "gave up").value == 0.0


def test_parts_are_logged_apart():
    """S09: a bad format does not keep the answer from being read."""
    score = task().score(ITEM, "<think>so</search></think> <answer>The Ann Lee</answer>")
    assert score.answer == "The Ann Lee"
    assert score.parts == {
        **dict.fromkeys(("em", "f1", "cover_em", "em_unicode", "answered"), 1.0),
        **dict.fromkeys(("format", "searched", "repeated_queries"), 0.0),
    }


def test_repeated_queries_are_counted():
    assert (
        task().score(ITEM, "<search>a b</search><search>A, b!</search><search>c</search>").parts["repeated_queries"]
        == 1
    )


def test_a_datasets_prompt_is_left_untouched(tmp_path):
    """Search-R1's parquet: messages of its own, golds under reward_model; a prompt that ends in <think> opens a
    thought."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    prompt = [{"role": "user", "content": "Answer. For example, <answer> Beijing </answer>. Question: who?"}]
    row = {"id": "train_0", "question": "who?", "prompt": prompt, "reward_model": {"ground_truth": {"target": ["Ann"]}}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train.parquet")
    files = {"train": str(tmp_path / "train.parquet"), "dev": None, "test": None, "eval_fraction": 0.0}
    read = SearchTask({"kind": "jsonl", **files}, prompt="dataset", format_bonus=0.5)
    (item,) = read.items("train")
    assert item.gold == ("Ann",)
    assert read.messages(item) == prompt
    read.validate(item)
    begun = TaskItem("q", "who?", ("Ann",), {"prompt": "who? <think>\n"})
    assert read.messages(begun) == [{"role": "raw", "content": "who? <think>\n"}]
    assert read.score(begun, "<answer>Ann</answer>").value == -1.0
    assert read.score(begun, "hm</think><answer>Ann</answer>").value == 1.5
    read.validate(begun)
    with pytest.raises(TaskDataError, match="'prompt'"):
        read.messages(ITEM)


def test_prompts_hold_the_question_once_and_no_system_message():
    tricky = TaskItem("q", "  What is {question} in C++ {0}?  ", ("x",))
    for style in ("brief", "full"):
        (message,) = task(prompt=style).messages(tricky)
        assert message["role"] == "user"
        assert message["content"].endswith("Question: What is {question} in C++ {0}?\n")
    assert len(task(prompt="brief").messages(ITEM)[0]["content"]) < 60


@pytest.mark.parametrize("style", ["brief", "full"])
def test_every_generated_item_validates_and_its_demonstration_is_perfect(style):
    searching = task(prompt=style, format_bonus=0.25)
    for split in ("train", "dev", "test"):
        for item in searching.items(split):
            searching.validate(item)
            turns = searching.oracle(item)
            assert len(turns) == item.meta["hops"] + 1
            assert all(turn.text.endswith("</search>") for turn in turns[:-1])
            assert turns[-1].text.endswith("</answer>")
            assert all(("<think>" in turn.text) == (style == "full") for turn in turns)
            assert searching.score(item, "".join(turn.text for turn in turns)).value == searching.max_score == 1.25


def test_no_demonstration_without_queries():
    with pytest.raises(TaskDataError, match="oracle"):
        task().oracle(ITEM)


def test_jsonl_rows_may_bring_queries(tmp_path):
    row = {"id": 1, "question": "Who?", "golden_answers": ["Ann", "Anna"], "oracle": ["who is it"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    read = SearchTask(
        {
            "kind": "jsonl",
            "train": str(tmp_path / "q.jsonl"),
            "dev": None,
            "test": None,
            "eval_fraction": 0.0,
        },
        prompt="brief",
    )
    (item,) = read.items("train")
    assert [turn.text for turn in read.oracle(item)] == [
        "<search> who is it </search>",
        "<answer> Ann </answer>",
    ]
    read.validate(item)


def test_validate_names_a_gold_that_cannot_score():
    with pytest.raises(TaskDataError, match=r"'q'.*a</answer>"):
        task().validate(TaskItem("q", "Who?", ("Ann", "a</answer>b")))


@pytest.mark.parametrize("reward", ["em_pm1", "f1"])
def test_every_real_gold_scores_the_maximum(reward):
    files = sorted(DATA.glob("*.jsonl"))
    if not files:
        pytest.skip(f"real question sets are not at {DATA}")
    searching = task(reward=reward, format_bonus=0.1)
    for path in files:
        for item in list(read_jsonl(path))[:400]:
            searching.validate(item)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompt": "long"}, "prompt='long'"),
        ({"reward": "bleu"}, "reward='bleu'"),
        ({"format_bonus": -1.0}, "format_bonus=-1.0"),
        ({"no_search_penalty": -1.0}, "no_search_penalty"),
        ({"top_k": 0}, "top_k=0"),
    ],
)
def test_settings_out_of_range_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        task(**settings)


def test_unknown_data_kind_is_named():
    with pytest.raises(ValueError, match=r"data\.kind='csv'"):
        SearchTask({"kind": "csv"})


def test_items_survive_pickling_and_are_read_once():
    searching = task()
    assert searching.items("dev") is searching.items("dev")
    item = searching.items("dev")[0]
    assert pickle.loads(pickle.dumps(item)) == item

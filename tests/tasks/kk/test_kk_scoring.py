"""The reward of Table 5 and the reading of identities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.base import TURN_END, Task, TaskDataError, TaskItem
from tasks.kk import KKTask
from tasks.kk.scoring import read_identities, score_response

NAMES, SOLUTION = ("Al", "Alan", "Bea"), (False, True, True)
RIGHT = "(1) Al is a knave\n(2) Alan is a knight\n(3) Bea is a knight"
WRONG = RIGHT.replace("knave", "knight")
DATA = {"kind": "generated", "seed": 0, "people": [3, 4], "depth": 2, "width": 2, "train": 20, "dev": 5, "test": 5}


def value(response: str, **more) -> float:
    return score_response(response, NAMES, SOLUTION, **more).value


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (f"<think> so </think> <answer> {RIGHT} </answer>", 3.0),
        (f"<think></think>\n<answer>{RIGHT}</answer>", 3.0),
        (f"<think>so</think><answer>{WRONG}</answer>", -0.5),
        ("<think>so</think><answer>I give up</answer>", -1.0),
        ("<think>so</think><answer></answer>", -1.0),
        (RIGHT, -3.0),
        ("", -3.0),
        (f"<answer>{RIGHT}</answer>", -3.0),
        (f"<answer>{RIGHT}</answer><think>so</think>", -3.0),
        (f"<think>so<answer>{RIGHT}</answer></think>", -3.0),
        (f"<think>so</think></think><answer>{RIGHT}</answer>", -3.0),
        (f"<think>so</think><answer>{RIGHT}</answer><answer>{RIGHT}</answer>", -3.0),
        (f"<think>a</think><think>so</think><answer>{RIGHT}</answer>", -3.0),
        (f"<think>so</think><answer>{RIGHT}", -3.0),
        (f"so</think><answer>{RIGHT}</answer>", -3.0),
    ],
)
def test_table_5(response, reward):
    assert value(response) == reward


def test_the_opening_tag_may_be_the_prompts():
    """B15 (huggingface/trl#6966)."""
    assert value(f"so</think><answer>{RIGHT}</answer>", prefilled=True) == 3.0
    assert value(f"<think>so</think><answer>{RIGHT}</answer>", prefilled=True) == -3.0
    assert value(f"<answer>{RIGHT}</answer>", prefilled=True) == -3.0


def test_format_and_answer_are_logged_apart():
    """S09 (Unakar/Logic-RL#71): a bad format earns nothing, but that the answer was right can be seen."""
    score = score_response(f"<answer>{RIGHT}</answer>", NAMES, SOLUTION)
    assert (score.value, score.answer) == (-3.0, RIGHT)
    assert score.parts == {
        **{"em": 0.0, "format": -1.0, "answer": -2.0, "readable": 1.0, "solved": 1.0, "answered": 1.0},
        "em_3_people": 0.0,
    }


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        "Al is a knave and Alan is a knight, and Bea is a knight.",
        "bea IS A KNIGHT; ALAN is a knight; al is a KNAVE",
        "- **Alan**: knight\n- **Bea**: knight\n- **Al**: knave",
        "Al = knave, Alan = knight, Bea = knight",
        "Al (knave), Alan (knight), Bea (knight)",
        "1. Al - a knave\n2. Alan - a knight\n3. Bea - a knight",
        "So the identities are: Al is a knave, while Alan is a knight and Bea is the knight.",
    ],
)
def test_any_order_case_and_punctuation_is_read(answer):
    """B53 (open-thought/reasoning-gym#196)."""
    assert read_identities(answer, NAMES) == {"Al": False, "Alan": True, "Bea": True}


@pytest.mark.parametrize(
    "answer",
    [
        "Alan is a knight, Bea is a knight",
        "Alan is a knight, Al is not a knight, Bea is a knight",
        RIGHT.replace("Al is a knave", "Al isn't a knight"),
        RIGHT + "\n(4) Zed is a knight",
        RIGHT + ", Zed",
        RIGHT + "\nAl is a knave",
        RIGHT + "\nAl is a knight",
        "Al is a knave and a knight, Alan is a knight and a knave, Bea is a knight and a knave",
        "Al and Alan and Bea are knights",
        "either Al is a knave or Alan is a knight, Bea is a knight",
        "if Al is a knave then Alan is a knight and Bea is a knight",
        "It is false that Al is a knave. Alan is a knight. Bea is a knight.",
        "Neither Al is a knave nor Alan is a knight; Bea is a knight",
        "Al is a knave? Alan is a knight? Bea is a knight? maybe",
        "knight knave knight",
        "Albert is a knave, Alan is a knight, Bea is a knight",
        "Al is a knaves, Alan is a knight, Bea is a knight",
        "",
    ],
)
def test_what_cannot_be_read(answer):
    """B53: negation, prefixes of names, contradiction, twice, unknown people."""
    assert read_identities(answer, NAMES) is None


@given(
    st.text(max_size=80)
    | st.lists(st.sampled_from(["Al", "Alan", "is a", "knight", "knave", "not", ",", "and", "\n"])).map(" ".join)
)
def test_any_text_is_read_without_an_exception(answer):
    found = read_identities(answer, NAMES)
    assert found is None or set(found) == set(NAMES)


@given(st.permutations(range(3)), st.sampled_from([", ", "\n", "; ", " and "]))
def test_every_order_scores_alike(order, between):
    claims = RIGHT.split("\n")
    assert value(f"<think></think><answer>{between.join(claims[n] for n in order)}</answer>") == 3.0


@pytest.mark.parametrize(
    "hack",
    [
        "<think></think><answer></answer>",
        "<think></think><answer>knight knave</answer>",
        "<think></think><answer>" + " ".join(f"{n} is a knight. {n} is a knave." for n in NAMES) + "</answer>",
        "<think></think><answer>" + RIGHT + " Zed is a knight</answer>",
        "<think></think><answer>" + RIGHT + "</answer>" + "<think></think><answer>" + RIGHT + "</answer>",
        "<think>" + RIGHT + "</think><answer>see above</answer>",
        "<think><answer>" + RIGHT + "</answer></think>",
    ],
)
def test_hacks_never_pay(hack):
    assert value(hack) <= -1.0
    assert score_response(hack, NAMES, SOLUTION).parts["em"] == 0.0


@pytest.mark.parametrize(("prompt", "prefill"), [("full", False), ("full", True), ("brief", False), ("brief", True)])
def test_every_generated_item_validates_and_its_demonstration_is_perfect(prompt, prefill):
    task = KKTask(DATA, prompt=prompt, prefill_think=prefill)
    assert isinstance(task, Task)
    for split in ("train", "dev", "test"):
        assert [item.meta["people"] for item in task.items(split)][:4] == [3, 4, 3, 4]
        for item in task.items(split):
            task.validate(item)
            (turn,) = task.oracle(item)
            assert turn.text.startswith("<think>") is not prefill
            assert task.score(item, turn.text).value == 3.0
            assert task.messages(item)[0]["content"].endswith(item.question + "\n")


def test_the_demonstrations_thought_tells_the_truth():
    """Whoever says what is false is the knave."""
    task = KKTask(DATA)
    for item in task.items("train"):
        checks = task.oracle(item)[0].text.partition("</think>")[0]
        verdicts = [word == "True." for word in checks.split() if word in ("True.", "False.")]
        assert verdicts == item.meta["solution"]


def test_the_prompts_own_example_and_other_turns_score_nothing():
    task = KKTask(DATA)
    item = task.items("train")[0]
    prompt = task.messages(item)[0]["content"]
    assert task.score(item, prompt[prompt.index("<answer>") :]).value == -3.0
    turns = task.oracle(item)[0].text.replace("</think>", "</think>" + TURN_END)
    assert task.score(item, turns).value == 3.0


def test_a_tool_is_taught_in_the_prompt():
    task = KKTask(DATA, tools=["python"])
    assert task.tools == ("python",)
    text = task.messages(task.items("dev")[0])[0]["content"]
    assert "<python> and </python>" in text
    assert "<output>" in text
    assert "<python>" not in KKTask(DATA).messages(task.items("dev")[0])[0]["content"]
    with pytest.raises(ValueError, match=r"'abacus'.*search, python"):
        KKTask(DATA, tools=["abacus"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompt": "long"}, "prompt='long'"),
        ({"prompt": "dataset", "prefill_think": True}, "prefill_think"),
        ({"data": {"kind": "csv"}}, r"data\.kind='csv'"),
        ({"data": {"kind": "files", "train": [], "dev": [], "test": []}}, "all empty"),
    ],
)
def test_settings_that_have_no_meaning_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        KKTask(**{"data": DATA, **settings})


def test_a_dataset_prompt_is_needed_where_it_is_asked_for():
    task = KKTask(DATA, prompt="dataset")
    with pytest.raises(TaskDataError, match="'prompt'"):
        task.messages(task.items("dev")[0])
    ready = TaskItem("x", "q", ("",), {"prompt": "who? <think>", "names": list(NAMES), "solution": list(SOLUTION)})
    assert task.messages(ready) == [{"role": "raw", "content": "who? <think>"}]
    assert task.score(ready, f"so</think><answer>{RIGHT}</answer>").value == 3.0

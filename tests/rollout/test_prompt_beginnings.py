"""Prompts that begin the response, prompts that are ready, and the grammar of free text."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_rl.rollout.codec import HFCodec
from agent_rl.rollout.engine import RolloutSpec, run_rollout
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.plain import PlainGrammar
from agent_rl.rollout.protocol import AnswerAction, CallAction, NoAction, SearchR1Grammar
from agent_rl.rollout.trajectory import StopReason
from agent_rl.testing import EchoTask, ScriptedSampler, ScriptedTools, ToyCodec
from tasks.base import TURN_END, Score

CODEC = ToyCodec()


def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    made.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return made


def test_a_begun_answer_is_left_open() -> None:
    codec = HFCodec(tokenizer(), "chat_template")
    ids = codec.render([{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>"}])
    assert ids == codec.encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>")


def test_a_ready_prompt_gets_no_second_template() -> None:
    codec = HFCodec(tokenizer(), "chat_template")
    ready = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>"
    ids = codec.render([{"role": "raw", "content": ready}])
    assert ids == codec.encode(ready)
    assert "".join(codec.pieces(ids)).count("<|im_start|>") == 2  # read as the special tokens that they are
    assert len(ids) < len(ready)


class Begun(EchoTask):
    """Its prompt begins the thought."""

    def messages(self, item):
        return [{"role": "user", "content": "say it <think>"}]


def run(task, grammar, turns, **limits):
    tools = ScriptedTools(lambda *_: "doc")
    spec = RolloutSpec(
        task=task,
        sampler=ScriptedSampler(CODEC, {"s": turns}),
        tools=tools,
        grammar=grammar,
        codec=CODEC,
        limits=RolloutLimits(**limits),
    )
    return asyncio.run(run_rollout(task.items("train")[1], spec, seed=0, session="s")), tools


def test_calls_inside_a_thought_that_the_prompt_began_are_not_made() -> None:
    """B01 and B15: until </think>, the first turn is inside the thought."""
    turns = ["maybe <search>x</search>", " no</think><search>y</search>", "<answer>1</answer>"]
    trajectory, tools = run(Begun(), SearchR1Grammar(), turns)
    assert [arguments["query"] for _, _, arguments in tools.calls] == ["y"]
    assert trajectory.counters["calls_in_think"] == 1
    assert trajectory.stop_reason is StopReason.ANSWER
    assert trajectory.turns[0].text == "maybe <search>x</search> no</think><search>y</search>"


def test_the_scorer_gets_the_turns_apart_and_no_tool_text() -> None:
    seen = []

    class Watching(EchoTask):
        def score(self, item, response_text):
            seen.append(response_text)
            return super().score(item, response_text)

    run(Watching(), SearchR1Grammar(), ["<search>x</search>", "<answer>1</answer>"])
    assert seen == ["<search>x</search>" + TURN_END + "<answer>1</answer>"]


@pytest.mark.parametrize(
    ("text", "tools", "action"),
    [
        ("so 5", (), AnswerAction("so 5")),
        ("<think>x</think> 5", (), AnswerAction("5")),
        ("<answer>5</answer>", (), AnswerAction("<answer>5</answer>")),
        ("<think>never closed", (), NoAction()),
        ("<python>1+1</python>", ("python",), CallAction("python", {"code": "1+1"})),
        ("<python>1+1</python>", (), AnswerAction("<python>1+1</python>")),
    ],
)
def test_plain(text, tools, action) -> None:
    assert PlainGrammar().parse(text, tools).action == action


def test_plain_has_no_stop_but_the_tools() -> None:
    assert PlainGrammar().stop_strings(()) == ()
    assert PlainGrammar().stop_strings(("python",)) == ("</python>",)


def test_a_task_without_tools_answers_in_one_turn_of_plain_text() -> None:
    class Free(EchoTask):
        tools = ()

        def score(self, item, response_text):
            return Score(1.0, {"em": 1.0}, "read")

    trajectory, tools = run(Free(), PlainGrammar(), ["the answer is 1"])
    assert (trajectory.stop_reason, tools.calls) == (StopReason.ANSWER, [])
    assert trajectory.answer == "read"
    assert "invalid_action" not in trajectory.counters


def test_a_slow_scorer_does_not_hold_up_the_others() -> None:
    """Scoring runs outside the event loop's thread."""
    threads = set()

    class Slow(EchoTask):
        def score(self, item, response_text):
            threads.add(threading.get_ident())
            time.sleep(0.3)
            return super().score(item, response_text)

    task = Slow()
    spec = RolloutSpec(
        task=task,
        sampler=ScriptedSampler(CODEC, {"*": ["<answer>1</answer>"]}),
        tools=ScriptedTools(lambda *_: ""),
        grammar=SearchR1Grammar(),
        codec=CODEC,
        limits=RolloutLimits(),
    )

    async def four() -> float:
        item = task.items("train")[1]
        began = time.perf_counter()
        await asyncio.gather(*(run_rollout(item, spec, seed=0, session=f"{n}") for n in range(4)))
        return time.perf_counter() - began

    assert asyncio.run(four()) < 0.9
    assert threading.get_ident() not in threads

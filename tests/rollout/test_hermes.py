"""Grammar hermes: the model's own function calling, through a chat template that has it. Inputs named by their
report."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_rl.errors import ToolServerUnavailable
from agent_rl.rollout.codec import HFCodec
from agent_rl.rollout.engine import RolloutSpec, run_rollout
from agent_rl.rollout.hermes import HermesGrammar
from agent_rl.rollout.ledger import Author
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.protocol import AnswerAction, CallAction, NoAction
from agent_rl.rollout.trajectory import StopReason
from agent_rl.samplers.base import SampledTurn
from agent_rl.testing import EchoTask, ScriptedTools, ToyCodec
from tools.protocol import ToolResult

# ChatML with tools, in the manner of Qwen2.5 and Hermes: consecutive tool messages share one user turn, and a thought
# of an earlier assistant turn is left out (as Qwen3 does).
TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}<|im_start|>user{% endif %}{{ "\n<tool_response>\n" }}
{{- message.content }}{{ "\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ message.role }}
{{ message.content.split("</think>")[-1] }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SCHEMA = {
    "name": "search",
    "description": "looks things up",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
TOOLS = ("search",)


def codec(tools=(SCHEMA,)) -> HFCodec:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return HFCodec(tokenizer, "chat_template", tools=tools)


CODEC = codec()


def call(query: str, name: str = "search") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'query': query}})}\n</tool_call>"


class Says:
    """A sampler that ends each turn with the model's own end token, as the ids it says."""

    def __init__(self, *turns: str) -> None:
        self.turns, self.seen = list(turns), []

    async def sample(self, ids, params, *, session):
        self.seen.append(list(ids))
        assert params.stop_strings == ()
        written = [*CODEC.encode(self.turns.pop(0)), CODEC.eos_id]
        return SampledTurn(written, [-0.1] * len(written), "stop", None, version=0)

    async def end_session(self, session):
        pass


def run(sampler, reply=lambda tool, arguments: f"about {arguments['query']}", *, max_calls=1, **limits):
    task = EchoTask(2)
    tools = ScriptedTools(reply)
    spec = RolloutSpec(
        task=task,
        sampler=sampler,
        tools=tools,
        grammar=HermesGrammar(CODEC, max_calls),
        codec=CODEC,
        limits=RolloutLimits(max_response_tokens=4000, max_turn_tokens=2000, **limits),
    )
    return asyncio.run(run_rollout(task.items("train")[1], spec, seed=0, session="s")), tools


def shown(ids) -> str:
    return "".join(CODEC.pieces(ids))


def test_a_call_its_result_and_the_answer() -> None:
    sampler = Says("let me see\n" + call("one"), "It is <answer>1</answer>")
    trajectory, tools = run(sampler)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWER, "1")
    assert trajectory.score is not None
    assert trajectory.score.value == 1.0
    assert tools.calls == [("s", "search", {"top_k": 2, "query": "one"})]
    turn = trajectory.turns[0]
    assert turn.observation == (
        "\n<|im_start|>user\n<tool_response>\nabout one\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert trajectory.ledger.authors.count(Author.TOOL) == len(CODEC.encode(turn.observation))


def test_the_prompt_describes_the_tools_and_counts_them() -> None:
    """B27 (verl-project/verl#3936): the schema is part of the prompt's length."""
    messages = EchoTask(2).messages(EchoTask(2).items("train")[1])
    with_tools, without = CODEC.render(messages), codec(tools=()).render(messages)
    assert '"looks things up"' in shown(with_tools)
    assert len(with_tools) > len(without) + 100
    trajectory, _ = run(Says("<answer>1</answer>"), max_prompt_tokens=len(with_tools) - 1)
    assert trajectory.stop_reason is StopReason.PROMPT_TOO_LONG


def test_ids_of_earlier_turns_are_what_was_sampled() -> None:
    """B11, B13: the template would leave the first turn's thought out; the ledger and the next prompt keep its ids."""
    sampler = Says("<think>hm</think>" + call("one"), "<answer>1</answer>")
    trajectory, _ = run(sampler)
    assert "<think>hm</think>" in shown(sampler.seen[1])
    assert trajectory.ledger.input_ids[: len(sampler.seen[1])] == sampler.seen[1]


def test_two_calls_in_one_turn_are_one_user_turn_with_two_results() -> None:
    """B03 (vllm-project/vllm#17790), S03 (THUDM/slime#2263): in order, and the same text as the full template's."""
    sampler = Says(call("a") + "\n" + call("b"), "<answer>1</answer>")
    trajectory, tools = run(sampler, max_calls=2)
    assert [arguments["query"] for _, _, arguments in tools.calls] == ["a", "b"]
    assert trajectory.searches == 2
    assert trajectory.counters == {"tool_ok": 2}
    whole = CODEC._tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "say 1"},
            {"role": "assistant", "content": call("a") + "\n" + call("b")},
            {"role": "tool", "content": "about a"},
            {"role": "tool", "content": "about b"},
        ],
        tools=[{"type": "function", "function": SCHEMA}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert shown(sampler.seen[1]).replace("Ġ", " ") == shown(CODEC.encode(whole)).replace("Ġ", " ")
    assert sampler.seen[1] == CODEC.encode(whole)


def test_calls_beyond_the_limit_are_dropped_and_counted() -> None:
    """B03: the first is made, the rest are counted."""
    trajectory, tools = run(Says(call("a") + call("b") + call("c"), "<answer>1</answer>"))
    assert [arguments["query"] for _, _, arguments in tools.calls] == ["a"]
    assert trajectory.counters["dropped_calls"] == 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"name":"search","arguments":["x"]}', "'arguments' should be a JSON object"),
        ('{"name":"search"}', "'arguments' should be a JSON object, not null"),
        ('{"name":"serch","arguments":{}}', "'name' is \"serch\"; the tools are search"),
        ('{"name":["search"],"arguments":{}}', "'name' is"),
        ('{"name":"search","arguments":{"q"', "not valid JSON"),
        ("[1]", "should be a JSON object with 'name'"),
        ("", "not valid JSON"),
        ("[" * 1500, "not valid JSON"),
    ],
)
def test_a_call_that_cannot_be_made_is_told_and_never_raises(body, words) -> None:
    """S01 (crewAIInc/crewAI#7536)."""
    trajectory, tools = run(Says(f"<tool_call>{body}</tool_call>", "<answer>1</answer>"), max_calls=2)
    assert tools.calls == []
    assert words in str(trajectory.turns[0].observation)
    assert trajectory.counters["tool_invalid"] == 1
    assert trajectory.stop_reason is StopReason.ANSWER


def test_a_call_inside_a_thought_is_not_made() -> None:
    """B01 (verl-project/verl#4757)."""
    parsed = HermesGrammar(CODEC).parse(f"<think>maybe {call('red fox')}</think>{call('arctic hare')}", TOOLS)
    assert parsed.action == CallAction("search", {"query": "arctic hare"})
    assert (parsed.calls_in_think, parsed.dropped_calls) == (1, 0)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("plain words", AnswerAction("plain words")),
        ("<think>x</think> <answer> 1 </answer> done", AnswerAction("1")),
        ('<tool_call>{"name": "search"', NoAction()),
        ("<think>never closed <answer>1</answer>", NoAction()),
    ],
)
def test_a_turn_without_a_call(text, action) -> None:
    assert HermesGrammar(CODEC).parse(text, TOOLS).action == action


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name":', '"search"', "}", "x"]))
)
def test_any_text_is_parsed(pieces) -> None:
    HermesGrammar(CODEC, 3).parse("".join(pieces), TOOLS)


def test_a_turn_cut_at_its_limit_makes_no_call() -> None:
    """B05 (vllm-project/vllm#58228)."""

    class Cut(Says):
        async def sample(self, ids, params, *, session):
            written = CODEC.encode(call("one"))
            return SampledTurn(written, [-0.1] * len(written), "length", None, version=0)

    trajectory, tools = run(Cut())
    assert (trajectory.stop_reason, tools.calls) == (StopReason.MAX_TOKENS, [])


def test_long_results_share_the_room_and_keep_their_ends() -> None:
    """S05 (verl-project/verl#4918): the limit is in tokens, and the closing part survives."""
    long = "\n".join(f"Doc {n}: " + "x" * 40 for n in range(20))
    sampler = Says(call("a") + call("b"), "<answer>1</answer>")
    trajectory, _ = run(sampler, lambda *_: long, max_calls=2, max_observation_tokens=400)
    observation = str(trajectory.turns[0].observation)
    assert observation.count("</tool_response>") == 2
    assert observation.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert trajectory.ledger.count(Author.TOOL) <= 400
    assert trajectory.counters["truncated_observation"] == 2


def test_a_failure_of_one_call_fails_the_rollout() -> None:
    def reply(tool, arguments):
        return ToolServerUnavailable("gone") if arguments["query"] == "b" else ToolResult("", "ok", "fine")

    trajectory, _ = run(Says(call("a") + call("b")), reply, max_calls=2)
    assert trajectory.stop_reason is StopReason.FAILED
    assert trajectory.failure is not None
    assert trajectory.failure.boundary == "tool"


def test_the_correction_is_a_user_turn() -> None:
    text = HermesGrammar(CODEC).correction(TOOLS)
    assert text.startswith("\n<|im_start|>user\n")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_cannot_show_results_is_named() -> None:
    plain = HFCodec(CODEC._tokenizer, "plain")
    with pytest.raises(ValueError, match=r"model\.prompt_format=chat_template"):
        plain.turn_frames("tool", 1)
    deaf = codec()
    deaf._tokenizer.chat_template = TEMPLATE.replace("{{- message.content }}", "")
    with pytest.raises(ValueError, match="cannot show a 'tool' message"):
        deaf.turn_frames("tool", 1)
    assert ToyCodec().turn_frames("tool", 2)

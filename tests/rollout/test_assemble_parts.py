"""From a configuration to the parts of a rollout, and the checks of a real tool server before a run."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from agent_rl.config.schema import RunConfig
from agent_rl.errors import UsageError
from agent_rl.rollout.assemble import check_tools, make_codec, make_limits, make_plan, make_task, make_tools
from agent_rl.testing import tiny_model
from tools.app import create_app
from tools.testing import EchoTool, RunningServer


class NamedSearch(EchoTool):
    name = "search"


def config(**values) -> RunConfig:
    return RunConfig.model_validate(
        {"task": {"kind": "search", "data": {"kind": "miniwiki", "passages": 300}}} | values
    )


def check(url: str) -> None:
    settings = config(tools={"url": url, "index": "indexes/mine"})

    async def run() -> None:
        async with make_tools(settings) as tools:
            await check_tools(settings, tools)

    asyncio.run(run())


def test_limits_come_from_their_own_keys() -> None:
    names = {
        "max_turns": 2,
        "max_turn_tokens": 31,
        "max_response_tokens": 32,
        "max_observation_tokens": 33,
        "max_prompt_tokens": 34,
        "rollout_timeout_s": 35.0,
    }
    limits = make_limits(config(rollout=names, tools={"call_timeout_s": 36}))
    assert {name: getattr(limits, name) for name in names} == names
    assert limits.tool_timeout_s == 36


def test_plan_of_small_groups() -> None:
    """A greedy evaluation has groups of one: they need one survivor, not ``min_group``."""
    settings = config(rollout={"min_group": 3, "group_size": 8, "retries": 4, "max_in_flight": 5})
    assert make_plan(settings, size=8).min_group == 3
    small = make_plan(settings, size=1)
    assert (small.size, small.min_group, small.retries, small.max_in_flight) == (1, 1, 4, 5)


def test_task_has_the_settings() -> None:
    task = make_task(
        config(task={"kind": "search", "data": {"kind": "miniwiki", "passages": 300}, "top_k": 7, "format_bonus": 0.5})
    )
    assert task.tool_arguments == {"search": {"top_k": 7}}
    assert task.max_score == 1.5


@pytest.mark.parametrize(("generation", "expected"), [(None, {3}), (5, {3, 5}), ([5, 6], {3, 5, 6})])
def test_every_end_token_of_the_model_ends_a_turn(generation, expected) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {word: n for n, word in enumerate(["a", "b", "c", "<eos>"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")), eos_token="<eos>"
    )
    model = tiny_model(8)
    model.generation_config.eos_token_id = generation
    settings = config(model={"prompt_format": "plain"})
    assert make_codec(settings, model, tokenizer).eos_ids == expected


def test_server_that_is_ready_passes() -> None:
    with RunningServer(create_app(lambda: [NamedSearch()])) as server:
        check(server.url)


def test_server_that_is_loading_is_waited_for() -> None:
    loaded = threading.Event()

    def load():
        loaded.wait(20)
        return [NamedSearch()]

    with RunningServer(create_app(load)) as server:
        threading.Timer(0.2, loaded.set).start()
        check(server.url)
        assert loaded.is_set()


def test_server_without_the_tool_is_refused() -> None:
    with RunningServer(create_app(lambda: [EchoTool()])) as server, pytest.raises(UsageError, match=r"lacks \['search"):
        check(server.url)


def test_server_that_failed_to_load_says_why() -> None:
    def load():
        raise OSError("the index is gone")

    with (
        RunningServer(create_app(load)) as server,
        pytest.raises(UsageError, match=r"cannot serve: .*the index is gone"),
    ):
        check(server.url)


def test_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tools.token_file=.*none: No such file"):
        make_tools(config(tools={"token_file": str(tmp_path / "none")}))

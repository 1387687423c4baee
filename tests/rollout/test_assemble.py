"""What is checked of a tool server before a run begins."""

from __future__ import annotations

import asyncio

import pytest

from agent_rl.config.schema import MiniwikiData, RunConfig, SearchTask, ToolsConfig
from agent_rl.errors import UsageError
from agent_rl.rollout.assemble import check_tools, make_tools


def config_of(url: str = "http://127.0.0.1:9", **data: int) -> RunConfig:
    return RunConfig(task=SearchTask(data=MiniwikiData(**data)), tools=ToolsConfig(url=url))


class Health:
    """A tool client whose server gives these answers to /health, one after the other."""

    def __init__(self, *answers: dict) -> None:
        self.answers = list(answers)

    async def health(self) -> dict:
        return self.answers.pop(0)


READY = {"status": "ready", "tools": {"search": {}}, "index": {"corpus": "miniwiki seed=0 passages=2000"}}


def test_no_server_says_what_to_type() -> None:
    async def check() -> None:
        config = config_of()
        async with make_tools(config) as tools:
            await check_tools(config, tools)

    with pytest.raises(UsageError) as raised:
        asyncio.run(check())
    assert "agent-rl serve-tools index=indexes/miniwiki port=9" in str(raised.value)
    assert "tools.autostart=true" in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_loading_server_is_waited_for() -> None:
    health = Health({"status": "loading"}, READY)
    asyncio.run(check_tools(config_of(), health))
    assert health.answers == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "failed", "reason": "no index"}, "no index"),
        ({**READY, "tools": {"python": {}}}, r"lacks \['search'\]"),
        ({**READY, "index": {"corpus": "miniwiki seed=1 passages=2000"}}, "searches 'miniwiki seed=1 passages=2000'"),
    ],
)
def test_a_server_that_cannot_serve_this_run(answer: dict, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        asyncio.run(check_tools(config_of(), Health(answer)))


def test_another_corpus_may_hold_the_answers_too() -> None:
    asyncio.run(check_tools(config_of(), Health({**READY, "index": {"corpus": "everything.jsonl"}})))

"""What is checked of a tool server before a run begins."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent_rl.config.compose import compose
from agent_rl.config.schema import MiniwikiData, RunConfig, SearchTask, ToolsConfig
from agent_rl.errors import UsageError
from agent_rl.rollout.assemble import check_tools, make_tools, read_token, start_tools
from tools.app import create_app
from tools.testing import EchoTool, RunningServer


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


def test_the_token_is_found_as_the_server_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_RL_TOOL_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("AGENT_RL_TOOL_TOKEN", " word\n")
    assert read_token(None) == "word"
    file = tmp_path / "token"
    file.write_text("other\n")
    assert read_token(str(file)) == "other"


@pytest.mark.parametrize("content", [b"", b" \n", b"two\nlines", "wörd".encode(), b"\xff\xfe"])
def test_a_token_that_no_request_can_carry_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"tools\.token_file="):
        read_token(str(file))
    with pytest.raises(UsageError, match="No such file"):
        read_token(str(tmp_path / "absent"))


@pytest.mark.parametrize("task", ["kk", "math"])
def test_a_task_without_tools_needs_no_server(task, tmp_path) -> None:
    """Neither the check, nor autostart, nor the client asks for one."""
    config = compose("train", [f"task={task}", "tools.url=http://127.0.0.1:9", "tools.autostart=true"])
    config = config.model_copy(update={"run_dir": str(tmp_path)})

    async def check() -> list:
        async with make_tools(config) as tools:
            return await check_tools(config, tools)

    assert asyncio.run(check()) == []
    with ExitStack() as stack:
        start_tools(config, stack)
    assert list(tmp_path.iterdir()) == []


def test_the_grammar_is_the_tasks_unless_another_is_asked_for() -> None:
    from agent_rl.rollout.assemble import grammar_name, make_task

    for typed, expected in [
        (["task=kk"], "search_r1"),
        (["task=math"], "plain"),
        (["task=math", "task.answer_in=tags"], "search_r1"),
        (["task.prompt=hermes"], "hermes"),
        (["task=math", "rollout.grammar=search_r1"], "search_r1"),
    ]:
        config = compose("train", typed)
        assert grammar_name(config, make_task(config)) == expected


def test_hermes_asks_the_server_what_its_tools_are(tmp_path) -> None:
    class Search(EchoTool):
        name = "search"

    with RunningServer(create_app(lambda: [Search()])) as server:
        config = compose("train", ["task.data.passages=300", "task.prompt=hermes", f"tools.url={server.url}"])

        async def check() -> list:
            async with make_tools(config) as tools:
                return await check_tools(config, tools)

        (schema,) = asyncio.run(check())
    assert (schema["name"], set(schema)) == ("search", {"name", "description", "parameters", "idempotent"})

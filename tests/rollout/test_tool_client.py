"""The tool client against real servers, healthy, overloaded, silent, dead and come back."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from agent_rl.errors import (
    InfrastructureError,
    ToolDeadlineExceeded,
    ToolOverloaded,
    ToolServerUnavailable,
    UsageError,
)
from agent_rl.rollout.tool_client import ToolClient
from tools.app import create_app
from tools.host import ServerLimits
from tools.testing import EchoTool, RunningServer


def _server(tool: EchoTool, *, port: int = 0, token: str | None = None, **limits) -> RunningServer:
    return RunningServer(create_app(lambda: [tool], ServerLimits(**limits), token=token), port)


async def _silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts and never answers."""
    await asyncio.sleep(30)
    writer.close()


async def _until_running(tool: EchoTool) -> None:
    while not tool.batches:  # noqa: ASYNC110 - it runs in the server's thread
        await asyncio.sleep(0.005)


async def _until_waiting(tools: ToolClient, count: int) -> None:
    while (await tools.health())["waiting"]["echo"] != count:  # noqa: ASYNC110 - it changes in the server's thread
        await asyncio.sleep(0.005)


async def test_a_call_comes_back_as_a_result():
    with _server(EchoTool()) as server:
        async with ToolClient(server.url) as tools:
            result = await tools.call("echo", {"text": "hé"}, session="t1")
            assert (result.status, result.text, result.data) == ("ok", "echo hé", {"text": "hé"})
            assert (await tools.call("absent", {}, session=None)).status == "invalid"
            assert (await tools.health())["status"] == "ready"


async def test_64_coroutines_each_get_their_own_answer():
    with _server(EchoTool(run_s=0.01), max_batch=7) as server:
        async with ToolClient(server.url, max_connections=16) as tools:
            results = await asyncio.gather(*(tools.call("echo", {"text": str(n)}, session=f"s{n}") for n in range(64)))
    assert [result.text for result in results] == [f"echo {n}" for n in range(64)]


async def test_no_server_is_an_infrastructure_error_that_says_how_to_start_one():
    async with ToolClient("http://127.0.0.1:9", call_timeout_s=0.3) as tools:
        started = time.monotonic()
        with pytest.raises(ToolServerUnavailable, match="agent-rl serve-tools"):
            await tools.call("echo", {}, session=None)
        assert time.monotonic() - started < 1
        with pytest.raises(ToolServerUnavailable, match="agent-rl serve-tools"):
            await tools.health()


async def test_a_server_that_dies_in_the_middle_of_calls_and_comes_back_is_survived(caplog):
    caplog.set_level(logging.WARNING, "agent_rl.rollout.tool_client")
    dying = EchoTool()
    dying.gate.clear()
    with _server(dying) as server:
        async with ToolClient(server.url, call_timeout_s=20) as tools:
            calls = [asyncio.create_task(tools.call("echo", {"text": str(n)}, session=None)) for n in range(8)]
            await _until_running(dying)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.5)
            assert not any(call.done() for call in calls)
            with _server(EchoTool(), port=server.port):
                results = await asyncio.gather(*calls)
    assert [result.text for result in results] == [f"echo {n}" for n in range(8)]
    messages = [record.getMessage() for record in caplog.records]
    assert len([m for m in messages if "is down" in m and "serve-tools" in m]) == 1
    assert len([m for m in messages if "is back after" in m]) == 1


async def test_a_dead_server_is_logged_once_for_many_calls(caplog):
    caplog.set_level(logging.WARNING, "agent_rl.rollout.tool_client")
    async with ToolClient("http://127.0.0.1:9", call_timeout_s=0.5) as tools:
        outcomes = await asyncio.gather(
            *(tools.call("echo", {}, session=None) for _ in range(40)), return_exceptions=True
        )
    assert all(isinstance(outcome, ToolServerUnavailable) for outcome in outcomes)
    assert len(caplog.records) == 1


async def test_a_full_queue_is_tried_again_until_there_is_room():
    tool = EchoTool()
    tool.gate.clear()
    with _server(tool, max_batch=1, max_queue=1) as server:
        async with ToolClient(server.url, call_timeout_s=10) as tools:
            calls = [asyncio.create_task(tools.call("echo", {"text": str(n)}, session=None)) for n in range(6)]
            await asyncio.sleep(0.2)
            tool.gate.set()
            assert [(await call).text for call in calls] == [f"echo {n}" for n in range(6)]


async def test_a_queue_that_stays_full_is_overloaded_not_a_timeout():
    tool = EchoTool()
    tool.gate.clear()
    with _server(tool, max_batch=1, max_queue=1) as server:
        async with ToolClient(server.url) as tools:
            held = [asyncio.create_task(tools.call("echo", {}, session=None)) for _ in range(2)]
            await _until_waiting(tools, 1)
            with pytest.raises(ToolOverloaded):
                await tools.call("echo", {}, session=None, deadline_s=0.5)
            tool.gate.set()
            await asyncio.gather(*held)


async def test_a_server_that_never_answers_costs_only_the_deadline():
    server = await asyncio.start_server(_silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with ToolClient(url) as tools:
        started = time.monotonic()
        with pytest.raises(ToolDeadlineExceeded, match=r"within 0\.3 s"):
            await tools.call("echo", {}, session=None, deadline_s=0.3)
        assert time.monotonic() - started < 1
    server.close()


async def test_a_cancelled_coroutine_takes_its_call_off_the_server():
    tool = EchoTool()
    tool.gate.clear()
    with _server(tool, max_batch=1) as server:
        async with ToolClient(server.url) as tools:
            first = asyncio.create_task(tools.call("echo", {"text": "first"}, session=None))
            await _until_running(tool)
            gone = asyncio.create_task(tools.call("echo", {"text": "gone"}, session=None))
            await _until_waiting(tools, 1)
            gone.cancel()
            await _until_waiting(tools, 0)
            tool.gate.set()
            await first
    assert [call.arguments["text"] for batch in tool.batches for call in batch] == ["first"]


async def test_a_tool_that_breaks_is_never_an_observation():
    with _server(EchoTool()) as server:
        async with ToolClient(server.url) as tools:
            with pytest.raises(InfrastructureError, match="RuntimeError"):
                await tools.call("echo", {"raise": True}, session=None, deadline_s=2.0)
            assert (await tools.call("echo", {"text": "next"}, session=None)).status == "ok"


async def test_a_refused_token_says_so_and_is_not_tried_again():
    with _server(EchoTool(), token="right") as server:
        async with ToolClient(server.url, token="wrong") as tools:
            with pytest.raises(UsageError, match="token"):
                await tools.call("echo", {}, session=None)
        async with ToolClient(server.url, token="right") as tools:
            assert (await tools.call("echo", {}, session=None)).status == "ok"


async def test_arguments_that_no_server_could_read_are_the_models_fault():
    async with ToolClient("http://127.0.0.1:9") as tools:
        assert (await tools.call("echo", {"text": "\ud800"}, session=None)).status == "invalid"
        assert (await tools.call("echo", {"n": float("nan")}, session=None)).status == "invalid"


async def test_something_else_at_the_address_is_said():
    async def website(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(website, "127.0.0.1", 0)
    async with ToolClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as tools:
        with pytest.raises(ToolServerUnavailable, match="not a tool server"):
            await tools.health()
        with pytest.raises(ToolServerUnavailable, match="404"):
            await tools.call("echo", {}, session=None)
    server.close()


async def test_a_proxy_in_the_environment_is_not_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with _server(EchoTool()) as server:
        async with ToolClient(server.url, call_timeout_s=5) as tools:
            assert (await tools.call("echo", {"text": "x"}, session=None)).text == "echo x"


def test_one_client_serves_one_event_loop_after_another():
    with _server(EchoTool()) as server:
        tools = ToolClient(server.url, call_timeout_s=5)
        for text in ("a", "b"):
            assert asyncio.run(tools.call("echo", {"text": text}, session=None)).text == f"echo {text}"


class Keeping(EchoTool):
    """A tool with state: a call of it must not be made twice."""

    idempotent = False

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    async def end_session(self, session: str) -> None:
        self.ended.append(session)


async def test_a_call_with_state_is_not_sent_twice():
    """What came before it in its session died with the server."""
    dying = Keeping()
    dying.gate.clear()
    with _server(dying) as server:
        async with ToolClient(server.url, call_timeout_s=20) as tools:
            call = asyncio.create_task(tools.call("echo", {"text": "x"}, session="s"))
            await _until_running(dying)
            await asyncio.to_thread(server.kill)
            with _server(back := Keeping(), port=server.port):
                with pytest.raises(ToolServerUnavailable, match="not called twice"):
                    await call
                assert back.batches == []
                assert (await tools.call("echo", {"text": "new"}, session="t")).status == "ok"


async def test_a_tool_with_state_that_breaks_is_not_called_again():
    tool = Keeping()
    with _server(tool) as server:
        async with ToolClient(server.url, call_timeout_s=5) as tools:
            with pytest.raises(ToolServerUnavailable, match="not called twice"):
                await tools.call("echo", {"raise": True}, session="s")
    assert len(tool.batches) == 1


async def test_a_call_with_state_that_was_never_sent_waits_for_the_server():
    with _server(EchoTool()) as gone:
        pass
    async with ToolClient(gone.url, call_timeout_s=20) as tools:
        call = asyncio.create_task(tools.call("echo", {"text": "x"}, session="s"))
        await asyncio.sleep(0.3)
        with _server(Keeping(), port=gone.port):
            assert (await call).text == "echo x"


async def test_the_server_is_told_when_a_session_with_state_is_over():
    tool = Keeping()
    with _server(tool) as server:
        async with ToolClient(server.url) as tools:
            await tools.call("echo", {"text": "x"}, session="s")
            await tools.end_session("s")
            await tools.end_session("s")  # known no more
            await tools.end_session("never called a tool")
    assert tool.ended == ["s"]


async def test_the_end_of_a_session_never_fails():
    with _server(Keeping()) as server:
        tools = ToolClient(server.url)
        await tools.call("echo", {"text": "x"}, session="s")
    await tools.end_session("s")
    await tools.aclose()


async def test_without_state_nobody_is_told():
    with _server(tool := EchoTool()) as server:
        tool.end_session = None  # it would be called if the server were asked
        async with ToolClient(server.url) as tools:
            await tools.call("echo", {"text": "x"}, session="s")
            await tools.end_session("s")

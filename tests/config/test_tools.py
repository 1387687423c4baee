"""Which tools a run has, how it says so, and what they are served with."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from agent_rl.config.compose import compose
from agent_rl.config.schema import RunConfig, SearchToolConfig, ToolsConfig
from agent_rl.errors import ConfigError, UsageError
from agent_rl.rollout.assemble import check_tools, make_task, make_tools, start_tools
from agent_rl.rollout.autostart import serve_command
from tools.server import main as server_main
from tools.server import serve


@pytest.mark.parametrize("command", ["train", "eval", "rollout", "warmup"])
@pytest.mark.parametrize("names", [["python"], ["search", "python"], []])
def test_a_list_for_the_section_names_the_tools(command: str, names: list[str]) -> None:
    config = compose(command, [f"tools=[{','.join(names)}]", "tools.call_timeout_s=40"])
    assert isinstance(config, RunConfig)
    assert config.tools.names == tuple(names)
    assert config.tools.call_timeout_s == 40
    assert make_task(config).tools == tuple(names)


def test_without_a_list_the_task_has_its_own() -> None:
    config = compose("train", [])
    assert isinstance(config, RunConfig)
    assert config.tools.names is None
    assert make_task(config).tools == ("search",)


@pytest.mark.parametrize(
    ("command", "override", "says"),
    [
        ("train", "tools=[pyhton]", "did you mean python?"),
        ("train", "tools=[python,python]", "names a tool twice"),
        ("train", "tools=python", "is a section"),
        ("serve-tools", "tools=[search,search]", "names a tool twice"),
        ("serve-tools", "tools=[]", "at least 1 item"),
        ("serve-tools", "tools=[sql]", "needs sql.databases"),
        ("serve-tools", "python.isolation=none", "needs allow_unsafe=true"),
        ("serve-tools", "replicas=2", "engine=local has no replicas"),
        ("serve-tools", "ray_address=auto", "engine=local has no ray_address"),
        ("serve-tools", "python.engine=remote", "go together"),
        ("serve-tools", "python.url=http://x", "go together"),
        ("serve-tools", "python.timeout_s=0", "greater than 0"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(command: str, override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        compose(command, [override])


def test_a_call_must_have_time_for_its_own_limit() -> None:
    assert compose("train", ["tools.python.timeout_s=60"])  # of a server that others start
    with pytest.raises(ConfigError, match=r"python.timeout_s=60 is not below call_timeout_s=30"):
        compose("train", ["tools.autostart=true", "tools.python.timeout_s=60"])


def test_the_prompt_tells_of_the_tools_that_there_are() -> None:
    config = compose("train", ["tools=[python]", "task.prompt=full"])
    assert isinstance(config, RunConfig)
    task = make_task(config)
    (message,) = task.messages(task.items("train")[0])
    assert "<python>" in message["content"]
    assert "<search>" not in message["content"]


def test_a_task_without_tools_needs_no_server() -> None:
    config = compose("train", ["tools=[]", "tools.autostart=true", "tools.url=http://127.0.0.1:9"])
    assert isinstance(config, RunConfig)

    async def check() -> None:
        async with make_tools(config) as tools:
            await check_tools(config, tools)

    asyncio.run(check())
    start_tools(config, None)  # type: ignore[arg-type]  # nothing is entered, so nothing is to be left


def test_no_server_says_which_tools_to_serve() -> None:
    config = compose("train", ["tools=[search,python]", "tools.url=http://127.0.0.1:9"])
    assert isinstance(config, RunConfig)

    async def check() -> None:
        async with make_tools(config) as tools:
            await check_tools(config, tools)

    with pytest.raises(UsageError) as raised:
        asyncio.run(check())
    assert "agent-rl serve-tools tools=[search,python] index=indexes/miniwiki port=9" in str(raised.value)


def test_a_run_starts_the_tools_that_it_needs_with_its_settings() -> None:
    config = compose("train", ["tools=[python]", "tools.python.memory_mb=99"])
    assert isinstance(config, RunConfig)
    command = serve_command(config.tools, "127.0.0.1", 8900, ("python",))
    assert command[command.index("--tools") + 1] == "python"
    assert '"memory_mb":99' in command[command.index("--python") + 1]
    assert "--sql" not in command
    assert "--python" not in serve_command(config.tools, "127.0.0.1", 8900, ("search",))


def test_a_server_of_the_run_s_own_searches_as_the_run_says() -> None:
    overrides = ["tools.search.mode=hybrid", "tools.search.mmap=true", "tools.search.cache_entries=0"]
    config = compose("train", [*overrides, "tools.search.engine=openvino"])
    command = serve_command(config.tools, "127.0.0.1", 8900, ("search",))
    flags = command[command.index("--index") + 2 :]
    assert flags == ["--cache-entries", "0", "--mode", "hybrid", "--mmap", "--engine", "openvino"]
    assert "--mode" not in serve_command(config.tools, "127.0.0.1", 8900, ("python",))
    assert "--mode" not in serve_command(compose("train", []).tools, "127.0.0.1", 8900, ("search",))


def test_onnx_is_not_asked_for_what_it_does_not_compute() -> None:
    with pytest.raises(ConfigError, match=r"search: engine=onnx computes in float32; set dtype=float32"):
        compose("serve-tools", ["search.engine=onnx", "search.dtype=bfloat16"])
    with pytest.raises(ConfigError, match=r"encoder: engine=onnx computes in float32; set dtype=float32"):
        compose("build-index", ["encoder.engine=onnx", "encoder.dtype=bfloat16"])
    assert compose("serve-tools", ["search.engine=onnx", "search.dtype=auto"]).search.engine == "onnx"


def test_worker_processes_are_torch_s_and_ray_s_workers_are_not() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.workers=2: worker processes encode with torch; leave out"):
        compose("build-index", ["encoder.engine=openvino", "encoder.workers=2"])
    assert compose("build-index", ["encoder.engine=openvino", "encoder.workers=2", "engine=ray"]).encoder.workers == 2
    with pytest.raises(ConfigError, match="openvino_int8"):
        compose("build-index", ["encoder.engine=openvino_int8"])


def test_every_setting_of_search_is_one_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    served: dict[str, object] = {}
    monkeypatch.setattr("tools.server.serve", lambda tools, **settings: served.update(settings))
    changed = {"max_batch": 3, "max_queue": 4, "max_top_k": 5, "max_query_chars": 6, "cache_entries": 7, "mmap": True}
    changed |= {"mode": "bm25", "scan": "faiss", "engine": "openvino", "dtype": "float32"}
    changed |= {"rerank": "x/y", "rerank_depth": 8, "replicas": 2}
    search = SearchToolConfig.model_validate(changed)
    assert set(changed) == set(SearchToolConfig.model_fields)
    command = serve_command(ToolsConfig(search=search), "127.0.0.1", 8900, ("search",))
    assert server_main(command[3:]) == 0
    assert {name: served[name] for name in changed} == changed
    monkeypatch.undo()
    assert set(changed) <= set(inspect.signature(serve).parameters)

"""From a run's configuration to the parts that its rollouts need: task, codec, limits, tools."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_rl.config.schema import MiniwikiWorld, PluginTask, RunConfig, SearchTask
from agent_rl.errors import InfrastructureError, UsageError
from agent_rl.rollout.codec import HFCodec
from agent_rl.rollout.engine import RolloutSpec
from agent_rl.rollout.grammars import make_grammar
from agent_rl.rollout.groups import GroupPlan
from agent_rl.rollout.limits import RolloutLimits
from agent_rl.rollout.tool_client import ToolClient
from agent_rl.samplers.base import Sampler
from tasks.base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


TOKEN_ENV = "AGENT_RL_TOOL_TOKEN"

log = logging.getLogger(__name__)


def make_task(config: RunConfig) -> Task:
    """The task of ``config.task``. Raises TaskDataError for bad data, UsageError for a plug-in that cannot be had."""
    if isinstance(config.task, PluginTask):
        from agent_rl.rollout.task_plugin import load_task

        return load_task(config.task.path, config.task.settings)
    from tasks.kk import KKTask
    from tasks.math import MathTask
    from tasks.search import SearchTask

    kinds: dict[str, Callable[..., Task]] = {"search": SearchTask, "kk": KKTask, "math": MathTask}
    settings = config.task.model_dump()
    kind = settings.pop("kind")
    if config.tools.names is not None:
        settings["tools"] = config.tools.names
    return kinds[kind](settings.pop("data"), **settings)


def grammar_name(config: RunConfig, task: Task) -> str:
    return task.grammar if config.rollout.grammar == "auto" else config.rollout.grammar


def make_codec(
    config: RunConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tool_schemas: Sequence[dict[str, Any]] = (),
) -> HFCodec:
    """The codec with every id that ends a turn: the tokenizer's and those of the generation config.

    ``tool_schemas``: what ``check_tools`` found, for prompts that describe the tools by the chat template.
    """
    eos = getattr(model.generation_config, "eos_token_id", None)
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return HFCodec(tokenizer, config.model.prompt_format, ids, tool_schemas)


def make_limits(config: RunConfig) -> RolloutLimits:
    rollout = config.rollout
    return RolloutLimits(
        max_turns=rollout.max_turns,
        max_turn_tokens=rollout.max_turn_tokens,
        max_response_tokens=rollout.max_response_tokens,
        max_observation_tokens=rollout.max_observation_tokens,
        max_prompt_tokens=rollout.max_prompt_tokens,
        rollout_timeout_s=rollout.rollout_timeout_s,
        tool_timeout_s=config.tools.call_timeout_s,
    )


def make_spec(
    config: RunConfig, task: Task, codec: HFCodec, sampler: Sampler, tools: ToolClient, *, temperature: float
) -> RolloutSpec:
    return RolloutSpec(
        task=task,
        sampler=sampler,
        tools=tools,
        grammar=make_grammar(grammar_name(config, task), codec, config.rollout.max_calls_per_turn),
        codec=codec,
        limits=make_limits(config),
        temperature=temperature,
        correct_invalid_action=config.rollout.correct_invalid_action,
    )


def make_plan(config: RunConfig, *, size: int) -> GroupPlan:
    rollout = config.rollout
    return GroupPlan(size, min(rollout.min_group, size), rollout.retries, rollout.max_in_flight)


def make_tools(config: RunConfig) -> ToolClient:
    return ToolClient(
        config.tools.url,
        token=read_token(config.tools.token_file),
        call_timeout_s=config.tools.call_timeout_s,
        max_connections=config.tools.max_connections,
    )


def read_token(token_file: str | None) -> str | None:
    """The bearer token, as the tool server finds it: the file, else ``$AGENT_RL_TOOL_TOKEN``, else None."""
    source, token = TOKEN_ENV, os.environ.get(TOKEN_ENV, "").strip()
    if token_file is None and not token:
        return None
    if token_file is not None:
        source = f"tools.token_file={token_file}"
        try:
            token = Path(token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{source}: {getattr(error, 'strerror', None) or error}") from error
    if not (token and token.isascii() and token.isprintable()):
        raise UsageError(f"{source} holds no token: one line of plain ASCII letters and digits is needed")
    return token


def start_tools(config: RunConfig, stack: ExitStack) -> None:
    """Start the run's own tool server where ``tools.autostart`` asks for one; ``stack`` stops it.

    A task without tools needs none: it is not started, whatever the setting.
    """
    if config.tools.autostart and make_task(config).tools:
        from agent_rl.rollout.autostart import autostarted_tool_server

        names = make_task(config).tools
        if names:
            log = Path(config.run_dir) / "tool_server.log"
            stack.enter_context(autostarted_tool_server(config.tools, log, names))


async def check_tools(config: RunConfig, tools: ToolClient) -> list[dict[str, Any]]:
    """Wait until the tool server at ``tools.url`` is ready (a large index takes minutes to load).

    What it returns is for ``make_codec``: the schemas of the task's tools where the grammar has the chat template
    describe them, else nothing. A task without tools needs no server. Raises UsageError, with what to type, where
    none answers or it says that it cannot serve.
    """
    task = make_task(config)
    needed = task.tools
    if not needed:
        return []
    try:
        # Polling: the server is another process, there is no event to wait on.
        while (health := await tools.health())["status"] == "loading":  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        if health["status"] != "ready":
            raise UsageError(f"the tool server at {config.tools.url} cannot serve: {health}")
        lacking = set(needed) - set(health.get("tools", ()))
        if lacking:
            raise UsageError(
                f"the tool server at {config.tools.url} lacks {sorted(lacking)}: {health}; start one that has them:\n"
                f"  {_serve_command(config, needed)}"
            )
        if "search" in needed:
            _check_corpus(config, health.get("index", {}).get("corpus", ""))
        if grammar_name(config, task) != "hermes":
            return []
        return [schema for schema in await tools.schemas() if schema["name"] in needed]
    except InfrastructureError as error:
        raise UsageError(
            f"no tool server answers at tools.url={config.tools.url}; start one in another terminal:\n"
            f"  {_serve_command(config, needed)}\n"
            "or let the run start its own: add tools.autostart=true"
        ) from error


def _serve_command(config: RunConfig, names: Sequence[str]) -> str:
    tools = "" if tuple(names) == ("search",) else f"tools=[{','.join(names)}] "
    index = config.tools.index if _miniwiki(config) is not None else "YOUR_INDEX"
    searched = f"index={index} " if "search" in names else ""
    asked = "'sql.databases={main: YOUR_FILE}' " if "sql" in names else ""
    return f"agent-rl serve-tools {tools}{searched}{asked}port={urlsplit(config.tools.url).port or 80}"


def _miniwiki(config: RunConfig) -> MiniwikiWorld | None:
    data = config.task.data if isinstance(config.task, SearchTask) else None
    return data if isinstance(data, MiniwikiWorld) else None


def _check_corpus(config: RunConfig, served: str) -> None:
    """Questions about one fictional encyclopedia cannot be answered from another; nothing else would show it."""
    data = _miniwiki(config)
    if data is None or served == data.corpus_name:
        return
    found = (
        f"the questions are about {data.corpus_name!r} (task.data), but the tool server at {config.tools.url} "
        f"searches {served!r}"
    )
    if served.startswith("miniwiki "):
        raise UsageError(
            f"{found}; build and serve the other index:\n"
            f"  agent-rl build-index corpus=miniwiki corpus.seed={data.seed} corpus.passages={data.passages} out=..."
        )
    log.warning("%s: right only if that holds the encyclopedia too", found)

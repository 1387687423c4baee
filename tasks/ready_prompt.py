"""Prompts that a dataset brings along (``prompt_from=dataset``): used as they are, with no second chat template."""

from __future__ import annotations

from typing import Any

from tasks.base import Message, TaskDataError, TaskItem

# How the chat templates in use begin: a prompt with one of these in front has had its template already.
_TEMPLATE_STARTS = (
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<s>",
    "<bos>",
    "[INST]",
    "<｜begin▁of▁sentence｜>",
)


def ready_prompt(value: Any, where: str) -> list[Message]:
    """The messages of a row's ``prompt``: a text (a whole prompt) or a list of messages.

    A lone message whose content has had a chat template applied, as in Logic-RL's files, is a whole prompt as well.
    Raises TaskDataError for anything else.
    """
    if isinstance(value, str) and value.strip():
        return [{"role": "raw", "content": value}]
    if not isinstance(value, list) or not value:
        raise TaskDataError(f"{where}: 'prompt' should be a text or a list of messages, not {value!r}")
    messages: list[Message] = []
    for message in value:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise TaskDataError(
                f"{where}: 'prompt' holds {message!r}; a message is {{role, content}} of system, user, assistant"
            )
        messages.append({"role": role, "content": content})
    if len(messages) == 1 and messages[0]["content"].lstrip().startswith(_TEMPLATE_STARTS):
        return [{"role": "raw", "content": messages[0]["content"]}]
    return messages


def dataset_prompt(item: TaskItem) -> list[Message]:
    """The prompt that an item's row brings along (``prompt=dataset``). Raises TaskDataError where it has none."""
    if item.meta.get("prompt") is None:
        raise TaskDataError(f"item {item.id!r} has no 'prompt', which task.prompt=dataset needs")
    return ready_prompt(item.meta["prompt"], f"item {item.id!r}")


def asked(item: TaskItem, ask: str | None, *, prefill_think: bool) -> list[Message]:
    """``ask`` and the question in one user message, begun with ``<think>`` where wanted; None: the row's own prompt."""
    if ask is None:
        return dataset_prompt(item)
    messages: list[Message] = [{"role": "user", "content": f"{ask}{item.question}\n"}]
    if prefill_think:
        messages.append({"role": "assistant", "content": "<think>"})
    return messages

"""Between text and token ids: encoding of prompts and observations, decoding of what was sampled."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tasks.base import Message


class TokenCodec(Protocol):
    """``decode`` leaves special tokens out; ``eos_ids`` end a turn, ``eos_id`` is the one to end it with."""

    eos_ids: frozenset[int]
    eos_id: int

    def render(self, messages: list[Message]) -> list[int]:
        """The prompt: an ``assistant`` message at the end is left open, a ``raw`` one is encoded as it stands."""
        ...

    def turn_frames(self, role: str, count: int) -> list[str]:
        """What the chat template writes before, between and after ``count`` messages of ``role``, from the end of a
        finished assistant turn (behind its end token) to where the next one begins: ``count + 1`` texts."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class HFCodec:
    """A codec over a transformers tokenizer.

    ``prompt_format``: ``chat_template`` renders messages with the tokenizer's own template; ``plain`` joins
    their contents (for base models, and for small models where each template token costs time). ``tools``: what
    the template is told of tools (name, description, parameters as JSON schema), in every prompt.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt_format: Literal["chat_template", "plain"],
        eos_ids: Sequence[int] = (),
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        if prompt_format == "chat_template" and not tokenizer.chat_template:
            raise ValueError(
                f"the tokenizer of {tokenizer.name_or_path} has no chat template; use model.prompt_format=plain"
            )
        self._tokenizer = tokenizer
        self._format = prompt_format
        self._tools: list[Any] = [{"type": "function", "function": dict(tool)} for tool in tools]
        # A fast tokenizer shared by threads raises "Already borrowed" (huggingface/tokenizers#537).
        self._lock = threading.Lock()
        ends = [*([] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]), *eos_ids]
        if not ends:
            raise ValueError(f"neither the tokenizer of {tokenizer.name_or_path} nor its model names an end token")
        self.eos_ids, self.eos_id = frozenset(ends), ends[0]

    def render(self, messages: list[Message]) -> list[int]:
        if self._format == "plain" or messages[0]["role"] == "raw":
            return self.encode("\n".join(message["content"] for message in messages))
        begun = messages[-1]["role"] == "assistant"  # a beginning that the policy continues
        with self._lock:
            ids = self._tokenizer.apply_chat_template(
                [{"role": message["role"], "content": message["content"]} for message in messages],
                add_generation_prompt=not begun,
                continue_final_message=begun,
                tools=self._tools or None,
                tokenize=True,
                return_dict=False,
            )
        return [int(token) for token in ids]  # type: ignore[arg-type]  # one conversation: a flat list of ids

    def turn_frames(self, role: str, count: int) -> list[str]:
        if self._format == "plain":
            raise ValueError("rollout.grammar=hermes needs model.prompt_format=chat_template")
        said, marks = "@@said@@", [f"@@{number}@@" for number in range(count)]
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": said}]
        messages += [{"role": role, "content": mark} for mark in marks]
        with self._lock:
            text = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tools=self._tools or None, tokenize=False
            )
        assert isinstance(text, str)
        end = self._tokenizer.eos_token
        rest = text.rpartition(said)[2]
        if not rest.startswith(end) or any(rest.count(mark) != 1 for mark in marks):
            raise ValueError(
                f"the chat template of {self._tokenizer.name_or_path} cannot show a {role!r} message behind an "
                f"assistant's turn that ends in {end!r}; take another rollout.grammar"
            )
        return re.split("|".join(map(re.escape, marks)), rest.removeprefix(end))

    def encode(self, text: str) -> list[int]:
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        with self._lock:
            text = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Text of each token by itself (special tokens shown), for display only."""
        with self._lock:
            return self._tokenizer.batch_decode([[token] for token in ids], clean_up_tokenization_spaces=False)

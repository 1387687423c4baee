"""Between text and token ids: encoding of prompts and observations, decoding of what was sampled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tasks.base import Message


class TokenCodec(Protocol):
    """``decode`` leaves special tokens out; ``eos_ids`` end a turn."""

    eos_ids: frozenset[int]

    def render(self, messages: list[Message]) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class HFCodec:
    """A codec over a transformers tokenizer.

    ``prompt_format``: ``chat_template`` renders messages with the tokenizer's own template; ``plain`` joins
    their contents (for base models, and for small models where each template token costs time).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt_format: Literal["chat_template", "plain"],
        eos_ids: Sequence[int] = (),
    ) -> None:
        if prompt_format == "chat_template" and not tokenizer.chat_template:
            raise ValueError(
                f"the tokenizer of {tokenizer.name_or_path} has no chat template; use model.prompt_format=plain"
            )
        self._tokenizer = tokenizer
        self._format = prompt_format
        # A fast tokenizer shared by threads raises "Already borrowed" (huggingface/tokenizers#537).
        self._lock = threading.Lock()
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.eos_ids = frozenset([*own, *eos_ids])

    def render(self, messages: list[Message]) -> list[int]:
        if self._format == "plain":
            return self.encode("\n".join(message["content"] for message in messages))
        with self._lock:
            ids = self._tokenizer.apply_chat_template(
                [{"role": message["role"], "content": message["content"]} for message in messages],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        return [int(token) for token in ids]  # type: ignore[arg-type]  # one conversation: a flat list of ids

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

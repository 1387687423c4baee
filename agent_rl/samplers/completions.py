"""Two ways in which servers take token ids and give token ids with log-probabilities back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_rl.samplers.base import Finish, SamplingParams


@dataclass(frozen=True, slots=True)
class Completion:
    """``logprobs`` has one entry for each of ``ids``; ``stop_string`` where the server says that one ended it."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish
    stop_string: str | None


class TokenAPI(Protocol):
    path: str

    def body(self, model: str, ids: list[int], params: SamplingParams, eos_ids: Sequence[int]) -> dict[str, Any]: ...

    def read(self, answer: dict[str, Any]) -> Completion:
        """Raises KeyError, TypeError or ValueError (with what to do) where it is not such an answer."""
        ...


class OpenAICompletions:
    """`/v1/completions` with vLLM's extensions: a prompt of ids, ``return_token_ids``, the stop string kept."""

    path = "/v1/completions"

    def body(self, model: str, ids: list[int], params: SamplingParams, eos_ids: Sequence[int]) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": ids,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed & 0x7FFFFFFF,
            "stop": list(params.stop_strings),
            "stop_token_ids": list(eos_ids),
            "ignore_eos": True,
            "include_stop_str_in_output": True,
            "logprobs": 0,
            "return_token_ids": True,
        }

    def read(self, answer: dict[str, Any]) -> Completion:
        (choice,) = answer["choices"]
        if choice.get("token_ids") is None:
            raise ValueError(
                "it returns no token ids (vLLM does since 0.10.2); sampler.api=sglang is for SGLang, and "
                "sampler.api=chat, for evaluation alone, for any other"
            )
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if logprobs is None:
            raise ValueError("it returns no log-probabilities")
        stop = choice.get("stop_reason")
        return Completion(
            choice["token_ids"], logprobs, choice["finish_reason"], stop if isinstance(stop, str) else None
        )


class SGLangGenerate:
    """SGLang's own `/generate`, whose ``output_token_logprobs`` are triples of log-probability, id and text."""

    path = "/generate"

    def body(self, model: str, ids: list[int], params: SamplingParams, eos_ids: Sequence[int]) -> dict[str, Any]:
        return {
            "input_ids": ids,
            "sampling_params": {
                "max_new_tokens": params.max_tokens,
                "temperature": params.temperature,
                "sampling_seed": params.seed & 0x7FFFFFFF,
                "stop": list(params.stop_strings),
                "stop_token_ids": list(eos_ids),
                "ignore_eos": True,
                "no_stop_trim": True,
            },
            "return_logprob": True,
        }

    def read(self, answer: dict[str, Any]) -> Completion:
        about = answer["meta_info"]
        triples = about["output_token_logprobs"]
        ended = about["finish_reason"]
        matched = ended.get("matched")
        return Completion(
            [int(token) for _, token, *_ in triples],
            [float(logprob) for logprob, *_ in triples],
            ended["type"],
            matched if isinstance(matched, str) else None,
        )

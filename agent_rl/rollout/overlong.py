"""Soft punishment of responses that near their token limit."""

from __future__ import annotations


def overlong_penalty(tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """What is added to the reward of a response of ``tokens``, in [-1, 0] (DAPO, arXiv 2503.14476, Eq. 13)::

        0                                       up to max_tokens - buffer_tokens
        (max_tokens - buffer_tokens - tokens) / buffer_tokens     within the buffer, down to -1 at the limit

    ``buffer_tokens`` 0: no penalty at all.
    """
    if buffer_tokens == 0:
        return 0.0
    return -min(max((tokens - (max_tokens - buffer_tokens)) / buffer_tokens, 0.0), 1.0)

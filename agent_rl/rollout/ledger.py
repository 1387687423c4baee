"""The token ledger: append-only, the single source of truth of a trajectory's tokens.

Ids enter as they were sampled or tokenised and are never decoded and re-encoded, so that what is trained is
what the policy was conditioned on (invariants 1 and 2).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum


class Author(IntEnum):
    """Who wrote a token. Only ``POLICY`` tokens are trainable."""

    PROMPT = 0
    POLICY = 1
    TOOL = 2


class TokenLedger:
    """Tokens of one trajectory in order, each with its author and log-probability.

    ``input_ids``, ``authors``, ``loss_mask``, ``logprobs`` and ``versions`` always have the same length T.
    ``loss_mask`` is 1 exactly on policy tokens. ``logprobs`` holds the sampler's log-probability (natural log,
    at the sampling temperature) of policy tokens and 0.0 elsewhere. ``versions`` holds the policy version that
    sampled the token, -1 elsewhere.
    """

    __slots__ = ("_authors", "_ids", "_logprobs", "_versions")

    def __init__(self) -> None:
        self._ids = array("q")
        self._authors = array("b")
        self._logprobs = array("d")
        self._versions = array("q")

    def prompt(self, ids: Sequence[int]) -> None:
        """Append prompt tokens. Raises ValueError once anything else has been written."""
        if any(author != Author.PROMPT for author in self._authors):
            raise ValueError("a prompt cannot follow policy or tool tokens")
        self._append(ids, Author.PROMPT, [0.0] * len(ids), -1)

    def policy(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Append sampled tokens with their log-probabilities, one for each."""
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} sampled ids came with {len(logprobs)} log-probabilities")
        if any(not (value <= 1e-4) for value in logprobs):  # also catches NaN
            raise ValueError("a log-probability is above 0 or not a number")
        self._append(ids, Author.POLICY, logprobs, version)

    def observation(self, ids: Sequence[int]) -> None:
        """Append tool output (and template separators around it): never trainable."""
        self._append(ids, Author.TOOL, [0.0] * len(ids), -1)

    def _append(self, ids: Sequence[int], author: Author, logprobs: Sequence[float], version: int) -> None:
        if any(token < 0 for token in ids):
            raise ValueError("token ids must not be negative")
        self._ids.extend(ids)
        self._authors.extend([author] * len(ids))
        self._logprobs.extend(logprobs)
        self._versions.extend([version] * len(ids))

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def input_ids(self) -> list[int]:
        return self._ids.tolist()

    @property
    def authors(self) -> list[int]:
        return self._authors.tolist()

    @property
    def loss_mask(self) -> list[int]:
        return [int(author == Author.POLICY) for author in self._authors]

    @property
    def logprobs(self) -> list[float]:
        return self._logprobs.tolist()

    @property
    def versions(self) -> list[int]:
        return self._versions.tolist()

    def count(self, author: Author) -> int:
        """Number of tokens that ``author`` wrote."""
        return self._authors.count(author)

    def response_length(self) -> int:
        """Policy and tool tokens together."""
        return len(self._ids) - self._authors.count(Author.PROMPT)

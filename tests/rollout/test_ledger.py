"""The ledger: lengths agree, and the mask is 1 exactly on policy tokens, whatever is appended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.rollout.ledger import Author, TokenLedger

IDS = st.lists(st.integers(0, 50_000), max_size=8)
PARTS = st.lists(st.tuples(st.sampled_from([Author.POLICY, Author.TOOL]), IDS), max_size=8)


@given(prompt=IDS, parts=PARTS)
def test_mask_is_one_exactly_on_policy_tokens(prompt: list[int], parts: list[tuple[Author, list[int]]]) -> None:
    ledger, ids, mask, logprobs = TokenLedger(), list(prompt), [0] * len(prompt), [0.0] * len(prompt)
    ledger.prompt(prompt)
    for place, (author, tokens) in enumerate(parts):
        if author is Author.POLICY:
            ledger.policy(tokens, [-float(place + 1)] * len(tokens), version=place)
        else:
            ledger.observation(tokens)
        ids += tokens
        mask += [int(author is Author.POLICY)] * len(tokens)
        logprobs += [-float(place + 1) if author is Author.POLICY else 0.0] * len(tokens)
    assert ledger.input_ids == ids
    assert ledger.loss_mask == mask
    assert ledger.logprobs == logprobs
    assert len(ledger) == len(ledger.authors) == len(ledger.versions) == len(ids)
    assert ledger.response_length() == len(ids) - len(prompt)
    assert ledger.count(Author.POLICY) == sum(mask)


def test_what_is_refused() -> None:
    ledger = TokenLedger()
    ledger.prompt([1, 2])
    with pytest.raises(ValueError, match="2 sampled ids came with 1"):
        ledger.policy([1, 2], [-0.1], version=0)
    with pytest.raises(ValueError, match="above 0 or not a number"):
        ledger.policy([1], [float("nan")], version=0)
    with pytest.raises(ValueError, match="above 0"):
        ledger.policy([1], [0.5], version=0)
    with pytest.raises(ValueError, match="negative"):
        ledger.observation([-1])
    assert ledger.input_ids == [1, 2], "a refused append leaves nothing behind"
    ledger.observation([3])
    with pytest.raises(ValueError, match="prompt cannot follow"):
        ledger.prompt([4])

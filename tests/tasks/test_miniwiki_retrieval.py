"""A demonstration's query has to find its passage, or the warm-up would teach searches that fail."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval_index.encoder import Encoder, EncoderSpec
from tasks.miniwiki import generate


@pytest.mark.slow
def test_dense_retrieval_finds_the_passage_among_the_top_three():
    world = generate(1, 600)
    encoder = Encoder(EncoderSpec("minilm"))
    passages = encoder.encode_passages([f'"{passage.title}"\n{passage.text}' for passage in world.passages])
    row_of = {passage.title: row for row, passage in enumerate(world.passages)}
    pairs = [
        (query, row_of[title])
        for item in world.questions("dev", ["one_hop", "two_hop"])[:250]
        for query, title in zip(item.meta["oracle"], item.meta["supporting_titles"], strict=True)
    ]
    queries = encoder.encode_queries([query for query, _ in pairs])
    top = np.argsort(-queries @ passages.T, axis=1)[:, :3]
    found = [row in rows for (_, row), rows in zip(pairs, top, strict=True)]
    assert len(found) >= 250
    assert sum(found) / len(found) >= 0.95

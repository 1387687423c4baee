"""The benchmark of building and searching."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rl.bench.index import bench_index
from agent_rl.config.compose import compose
from agent_rl.errors import UsageError
from retrieval_index.fetch import MINILM, is_fetched


def write_corpus(path: Path, count: int) -> str:
    rows = [{"id": str(n), "title": f"Town {n}", "text": f"Town {n} lies at kilometre {n * 7}."} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.slow
@pytest.mark.skipif(not is_fetched(MINILM), reason="not fetched: agent-rl fetch minilm")
def test_building_costs_little_beside_the_encoder(tmp_path: Path) -> None:
    lines: list[str] = []
    overrides = [f"corpus={write_corpus(tmp_path / 'c.jsonl', 300)}", "rounds=2", f"out={tmp_path / 'out.json'}"]
    searched = {
        one.kind: one for one in bench_index(compose("bench-index", [*overrides, "kinds=[flat,sq8]"]), lines.append)
    }
    assert searched["flat"].recall == {"1": 1.0, "3": 1.0, "10": 1.0}
    assert searched["flat"].mib == pytest.approx(300 * 384 * 4 / 2**20, rel=0.01)
    assert searched["sq8"].mib < 0.3 * searched["flat"].mib
    # so few passages make the card, 80 queries, weigh much; with 2,048 it is above .95
    assert min(json.loads((tmp_path / "out.json").read_text())["build_ratio_cpu"]) > 0.3, lines


def test_a_corpus_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 10 passages; more than 10 are needed"):
        bench_index(compose("bench-index", [f"corpus={write_corpus(tmp_path / 'c.jsonl', 10)}"]))

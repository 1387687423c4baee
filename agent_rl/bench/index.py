"""`agent-rl bench index`: building beside the bare encoder, and searching every kind of index, over a corpus."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from agent_rl.config.schema import BenchIndexConfig
from agent_rl.errors import UsageError
from retrieval_index.builder import build_index
from retrieval_index.card import recall, true_and_exact_scores
from retrieval_index.corpus import Passage
from retrieval_index.encoder import Encoder, EncoderSpec
from retrieval_index.kinds import index_kind, new_index, set_search
from retrieval_index.readers import read_corpus

QUERIES = 256
BATCH = 64
DEPTH = 10


@dataclass(frozen=True, slots=True)
class Searched:
    """One kind over the passages' vectors. ``queries_per_s`` without the encoder, in batches of 64."""

    kind: str
    factory: str
    mib: float
    queries_per_s: float
    recall: dict[str, float]


def bench_index(config: BenchIndexConfig, report: Callable[[str], None] = print) -> list[Searched]:
    """Measure, report, and write ``config.out`` (JSON) where it is given.

    Raises CorpusError, EncoderError, UsageError (too few passages).
    """
    passages = list(islice(read_corpus(config.corpus), config.passages))
    if len(passages) <= DEPTH:
        raise UsageError(f"corpus={config.corpus} has {len(passages)} passages; more than {DEPTH} are needed")
    settings = config.encoder.model_dump(exclude={"batch_size", "workers", "engine"})
    model = Encoder(EncoderSpec(**settings), batch_size=config.encoder.batch_size, engine=config.encoder.engine)
    ratios = [_one_round(model, passages, config.encoder.batch_size, turn) for turn in range(config.rounds)]
    wall, cpu = zip(*ratios, strict=True)
    report(f"{len(passages)} passages; the whole build / the bare sentence-transformers encoder, passages a second:")
    report(f"  of the clock {_shown(wall)}; of the processor {_shown(cpu)}")
    vectors = model.encode_passages([passage.contents for passage in passages])
    step = max(1, len(passages) // QUERIES)
    queries = model.encode_queries([_question(passage) for passage in passages[::step]])
    searched = [_searched(kind, vectors, queries) for kind in config.kinds]
    report(f"{len(queries)} titles as queries")
    report("| index | factory | MiB | queries/s | recall@1 | recall@3 | recall@10 |")
    report("| --- | --- | --- | --- | --- | --- | --- |")
    for one in searched:
        shares = " | ".join(f"{one.recall[k]:.3f}" for k in ("1", "3", "10"))
        report(f"| {one.kind} | {one.factory} | {one.mib:.1f} | {one.queries_per_s:.0f} | {shares} |")
    if config.out is not None:
        record = {"build_ratio": wall, "build_ratio_cpu": cpu, "searched": [asdict(one) for one in searched]}
        Path(config.out).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return searched


def _one_round(model: Encoder, passages: list[Passage], batch_size: int, turn: int) -> tuple[float, float]:
    """(ratio of wall clock, ratio of processor time): the bare encoder's seconds over those of the whole build."""

    def bare() -> None:
        texts = [passage.contents for passage in passages]
        model.sentence_transformer.encode(texts, batch_size=batch_size, show_progress_bar=False)

    def whole() -> None:
        with tempfile.TemporaryDirectory() as folder:
            build_index(passages, model, Path(folder) / "i", progress=False)

    # each goes first every other time
    pair = (bare, whole) if turn % 2 == 0 else (whole, bare)
    took = {}
    for work in pair:
        clock, used = time.perf_counter(), time.process_time()
        work()
        took[work] = (time.perf_counter() - clock, time.process_time() - used)
    return took[bare][0] / took[whole][0], took[bare][1] / took[whole][1]


def _searched(name: str, vectors: np.ndarray, queries: np.ndarray) -> Searched:
    import faiss

    kind = index_kind(name, len(vectors), vectors.shape[1])
    index = new_index(kind, vectors.shape[1])
    if not index.is_trained:
        index.train(vectors)
    index.add(vectors)
    set_search(index, kind.nprobe, kind.ef_search)
    started = time.perf_counter()
    rows = np.concatenate([index.search(queries[at : at + BATCH], DEPTH)[1] for at in range(0, len(queries), BATCH)])
    seconds = time.perf_counter() - started
    true, exact = true_and_exact_scores([(0, vectors)], queries, rows, DEPTH)
    size = faiss.serialize_index(index).nbytes / 2**20
    return Searched(name, kind.factory, size, len(queries) / seconds, recall(true, exact))


def _question(passage: Passage) -> str:
    return passage.title if passage.title.strip() else " ".join(passage.text.split()[:12])


def _shown(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

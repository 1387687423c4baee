"""`agent-rl build-index`: encode a corpus into an index folder."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_rl.commands.parsing import add_command, composed


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "build-index",
        run=run,
        composes="build-index",
        summary="encode a corpus and build the index that serve-tools searches",
        examples=[
            "agent-rl build-index corpus=miniwiki encoder=minilm",
            "agent-rl build-index corpus=miniwiki corpus.passages=20000 out=indexes/miniwiki20k",
            "agent-rl build-index corpus=my.jsonl encoder=e5_base_v2 out=indexes/mine overwrite=true",
        ],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from retrieval_index.builder import build_index
    from retrieval_index.encoder import EncoderSpec

    encoder = config.encoder
    if not (encoder.query_prefix or encoder.passage_prefix) and _wants_prefixes(encoder.path):
        print(
            f"note: encoder.path={encoder.path} is used without prefixes; models of the E5 and BGE families "
            "were trained with them: set encoder.query_prefix and encoder.passage_prefix, or take a preset"
        )
    spec = EncoderSpec(**encoder.model_dump(exclude={"batch_size"}))
    with _corpus_file(config.corpus) as (corpus, name):
        build_index(
            corpus,
            spec,
            config.out or f"indexes/{name.split('.')[0].split()[0]}",
            overwrite=config.overwrite,
            batch_size=encoder.batch_size,
            corpus_name=name,
            report=print,
        )


def _wants_prefixes(path: str) -> bool:
    name = Path(path).name.lower()
    return "e5" in name or "bge" in name


@contextlib.contextmanager
def _corpus_file(corpus: Any) -> Iterator[tuple[Path, str]]:
    """The jsonl file of the corpus and its name; a generated one is a temporary file.

    The generator is called here, since `retrieval_index` knows nothing of `tasks`.
    """
    if corpus.kind == "jsonl":
        yield Path(corpus.path), Path(corpus.path).name
        return
    from tasks.miniwiki import write_corpus

    with tempfile.TemporaryDirectory(prefix="miniwiki-") as folder:
        file = write_corpus(Path(folder) / "corpus.jsonl", corpus.seed, corpus.passages)
        yield file, corpus.corpus_name

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
    parser = add_command(
        subparsers,
        "build-index",
        run=run,
        composes="build-index",
        summary="encode a corpus and build the index that serve-tools searches; a killed build goes on when run again",
        examples=[
            "agent-rl build-index corpus=miniwiki encoder=minilm",
            "agent-rl build-index corpus=my.jsonl encoder=e5_base_v2 out=indexes/mine overwrite=true",
            "agent-rl build-index --plan corpus=psgs_w100.tsv.gz encoder=e5_base_v2 index=auto memory_gb=16",
            "agent-rl build-index corpus=my.jsonl index=ivf_sq8 index.nprobe=128 index.bm25=true encoder.workers=4",
            "agent-rl build-index corpus=wiki-18.jsonl from_index=e5_Flat.index encoder=e5_base_v2 out=indexes/wiki18",
        ],
    )
    parser.add_argument("--plan", action="store_true", help="say what it would take on this machine, and build nothing")


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from retrieval_index.encoder import Encoder, EncoderSpec

    encoder = config.encoder
    if config.index.kind != "bm25":
        _note_missing_prefixes(encoder)
    spec = EncoderSpec(**encoder.model_dump(exclude={"batch_size", "workers", "engine"}))
    with _corpus_file(config.corpus) as (corpus, name):
        out = Path(config.out or f"indexes/{name.split('.')[0].split()[0]}")
        if args.plan:
            _plan(config, corpus, spec, out)
        elif config.from_index is not None:
            from retrieval_index.imported import import_index

            import_index(
                config.from_index,
                corpus,
                spec,
                out,
                bm25=config.index.bm25,
                overwrite=config.overwrite,
                engine=encoder.engine,
                report=print,
            )
        else:
            from retrieval_index.builder import IndexOptions, build_index
            from retrieval_index.encode_shards import LoadEncoder, encode_here, encode_on_ray

            encode = encode_here
            model: Any = spec
            if config.engine == "ray":
                import torch

                gpus = 1.0 if torch.cuda.is_available() and encoder.engine == "torch" else 0.0
                load = LoadEncoder(spec, encoder.batch_size, encoder.engine)
                encode = encode_on_ray(encoder.workers, gpus, load)
            elif encoder.workers > 1 and config.index.kind != "bm25":
                model = Encoder(spec, batch_size=encoder.batch_size, workers=encoder.workers)
            try:
                build_index(
                    corpus,
                    model,
                    out,
                    options=IndexOptions(**config.index.model_dump(), memory_gb=config.memory_gb),
                    overwrite=config.overwrite,
                    batch_size=encoder.batch_size,
                    engine=encoder.engine,
                    corpus_name=name,
                    report=print,
                    encode=encode,
                )
            finally:
                if isinstance(model, Encoder):
                    model.close()


def _plan(config: Any, corpus: Path, spec: Any, out: Path) -> None:
    from agent_rl.errors import UsageError
    from retrieval_index.kinds import KINDS, choose
    from retrieval_index.plan import free_bytes, plan_build

    kind = config.index.kind
    if kind not in (*KINDS, "auto"):
        raise UsageError(f"--plan: the size of index={kind} is not known beforehand; give one of {', '.join(KINDS)}")
    plan = plan_build(corpus, spec, config.encoder.batch_size, config.encoder.workers, config.encoder.engine)
    reason = ""
    if kind == "auto":
        kind, reason = choose(plan.passages, plan.dims, config.memory_gb)
    for line in plan.describe(kind, free_bytes(out)):
        print(line)
    if reason:
        print(f"index=auto       {reason}")


def _note_missing_prefixes(encoder: Any) -> None:
    if not (encoder.query_prefix or encoder.passage_prefix) and _wants_prefixes(encoder.path):
        print(
            f"note: encoder.path={encoder.path} is used without prefixes; models of the E5 and BGE families "
            "were trained with them: set encoder.query_prefix and encoder.passage_prefix, or take a preset"
        )


def _wants_prefixes(path: str) -> bool:
    name = Path(path).name.lower()
    return "e5" in name or "bge" in name


@contextlib.contextmanager
def _corpus_file(corpus: Any) -> Iterator[tuple[Path, str]]:
    """The file or folder of the corpus and its name; a generated one is a temporary file.

    The generator is called here, since `retrieval_index` knows nothing of `tasks`.
    """
    if corpus.kind == "file":
        yield Path(corpus.path), Path(corpus.path).name
        return
    from tasks.miniwiki import write_corpus

    with tempfile.TemporaryDirectory(prefix="miniwiki-") as folder:
        file = write_corpus(Path(folder) / "corpus.jsonl", corpus.seed, corpus.passages)
        yield file, corpus.corpus_name

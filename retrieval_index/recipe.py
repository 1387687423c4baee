"""What a build in progress was started with: a resumed build goes on only where all of it is the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from retrieval_index.corpus import OFFSETS_FILE, PASSAGES_FILE, Passage, write_store
from retrieval_index.encoder import TextEncoder
from retrieval_index.readers import corpus_files, read_corpus
from retrieval_index.vectors import VECTORS_DIR

RECIPE_FILE = "build.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """``source`` tells whether the corpus files changed without reading them: (path, bytes, mtime in ns) of each; empty
    for passages that come from no file. ``shard_rows`` and ``batch_size`` decide how texts are padded, and so the last
    bits of the vectors; so does what computes them.
    """

    source: tuple[tuple[str, int, int], ...]
    rows: int
    corpus_sha256: str
    encoder: dict[str, Any]
    encoder_fingerprint: str
    computes: str
    dims: int
    vectors_dtype: str
    shard_rows: int
    batch_size: int

    def write(self, folder: Path) -> None:
        part = folder / f"{RECIPE_FILE}.part"
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(folder / RECIPE_FILE)


def read_recipe(folder: Path) -> Recipe | None:
    """The recipe of an unfinished build, None where there is none that can be read."""
    try:
        raw = json.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
        return Recipe(**raw | {"source": tuple(tuple(entry) for entry in raw["source"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def source_of(corpus: str | Path | Iterable[Passage]) -> tuple[tuple[str, int, int], ...]:
    if not isinstance(corpus, str | Path):
        return ()
    stats = [(file.resolve(), file.stat()) for file in corpus_files(corpus)]
    return tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats)


def prepared(
    folder: Path,
    corpus: str | Path | Iterable[Passage],
    source_name: str,
    model: TextEncoder | None,
    vectors_dtype: str,
    shard_rows: int,
    batch_size: int,
) -> Recipe:
    """The recipe in ``folder``, with the whole corpus stored there. Vectors of an earlier build are kept only where
    they are those that this build would make.

    The corpus is read, checked and stored before the first passage is encoded: a bad line near the end should cost
    minutes, not hours. Raises CorpusError.
    """
    folder.mkdir(exist_ok=True)
    old, source = read_recipe(folder), source_of(corpus)
    if old is not None and source and old.source == source:
        rows, sha = old.rows, old.corpus_sha256
    else:
        fresh = folder / "store.part"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        passages = read_corpus(corpus) if isinstance(corpus, str | Path) else corpus
        rows, sha = write_store(passages, fresh, source_name)
        if old is not None and old.corpus_sha256 != sha:
            old = None
        if old is None:
            (folder / RECIPE_FILE).unlink(missing_ok=True)  # before the store changes: it would speak of another
            shutil.rmtree(folder / VECTORS_DIR, ignore_errors=True)
        for name in (PASSAGES_FILE, OFFSETS_FILE):
            (fresh / name).replace(folder / name)
        fresh.rmdir()
    recipe = Recipe(
        source=source,
        rows=rows,
        corpus_sha256=sha,
        encoder=asdict(model.spec) if model else {},
        encoder_fingerprint=model.fingerprint if model else "",
        computes=model.computes if model else "",
        dims=model.dims if model else 0,
        vectors_dtype=vectors_dtype,
        shard_rows=shard_rows,
        batch_size=batch_size,
    )
    if old is None or _vectors_of(old) != _vectors_of(recipe):
        shutil.rmtree(folder / VECTORS_DIR, ignore_errors=True)
    recipe.write(folder)
    return recipe


def _vectors_of(recipe: Recipe) -> dict[str, Any]:
    """What decides the vectors; the same model may lie in another place, its weights are compared."""
    decisive = asdict(replace(recipe, source=()))
    decisive["encoder"].pop("path", None)
    return decisive

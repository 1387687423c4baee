"""`agent-rl data prepare NAME`: a public data set as our jsonl, with a manifest."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.commands.parsing import add_command, composed
from agent_rl.commands.whole_folder import whole_folder

if TYPE_CHECKING:
    from tasks.public_sets import PublicSet, SourceFile


def add_parser(subparsers: Any) -> None:
    add_command(
        subparsers,
        "prepare",
        run=run,
        composes="data-prepare",
        summary="download a public data set and write it as jsonl files with a manifest (without a name: list them)",
        examples=[
            "agent-rl data prepare name=nq_hotpotqa",
            "agent-rl data prepare name=bamboogle out=data/bamboogle",
            "agent-rl data prepare name=math500 test=downloads/math500.jsonl",
            "agent-rl data prepare",
        ],
    )


def run(args: argparse.Namespace) -> None:
    config = composed(args)

    from tasks.public_sets import PUBLIC_SETS

    if config.name is None:
        for name, known in PUBLIC_SETS.items():
            sizes = ", ".join(f"{split} {count or '?'}" for split, count in known.rows.items())
            print(f"  {name:16} {known.task:7} {sizes:26} {known.licence}")
        return
    out = Path(config.out or f"data/{config.name}")
    given = {split: getattr(config, split) for split in ("train", "test") if getattr(config, split)}
    with whole_folder(out) as folder:
        rows = prepare(config.name, folder, given)
    print(f"{out}: " + ", ".join(f"{split} {count}" for split, count in rows.items()))


def prepare(name: str, folder: Path, given: dict[str, Sequence[str]]) -> dict[str, int]:
    """Write ``<split>.jsonl`` and, last, ``manifest.json`` to ``folder``; how many rows each split has.

    ``given``: local files by split, in place of a download; with some, the other splits are left out. Raises
    UsageError for a name or split that is not known, TaskDataError for a row that cannot be read or a set of
    another size than published, FetchError for a download that failed.
    """
    from agent_rl.errors import UsageError
    from tasks.base import TaskDataError
    from tasks.public_sets import PUBLIC_SETS

    if name not in PUBLIC_SETS:
        raise UsageError(f"name={name}: no such data set (there are: {', '.join(PUBLIC_SETS)})")
    known = PUBLIC_SETS[name]
    if surplus := sorted(set(given) - set(known.files)):
        raise UsageError(f"{surplus[0]}=...: {name} has no such split (it has: {', '.join(known.files)})")
    written: dict[str, Any] = {}
    for split in given or known.files:
        files = [str(file) for file in given[split]] if given else [_fetched(file) for file in known.files[split]]
        target = folder / f"{split}.jsonl"
        count = _convert(known, files, target)
        expected = known.rows[split]
        if not given and expected is not None and count != expected:
            raise TaskDataError(
                f"{name}: {split} has {count} rows, but {expected} are published: the source has changed"
            )
        sources = list(given[split]) if given else [file.address for file in known.files[split]]
        written[split] = {"rows": count, "sha256": _sha256(target), "sources": sources}
    manifest = {"name": name, "task": known.task, "licence": known.licence, "splits": written}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return {split: entry["rows"] for split, entry in written.items()}


def _convert(known: PublicSet, files: Sequence[str], target: Path) -> int:
    from tasks.rows import read_rows

    times: dict[str, int] = {}
    with target.open("w", encoding="utf-8") as out:
        for number, file in enumerate(files):
            for where, row in read_rows(file):
                made = known.convert(row, where)
                if len(files) > 1 and known.task == "search":  # both of the two have a train_0
                    made["id"] = f"{number}_{made['id']}"
                times[made["id"]] = times.get(made["id"], 0) + 1
                if times[made["id"]] > 1:  # some sets repeat rows on purpose
                    made["id"] += f"#{times[made['id']]}"
                out.write(json.dumps(made, ensure_ascii=False) + "\n")
    return sum(times.values())


def _fetched(file: SourceFile) -> str:
    """A path that ``read_rows`` takes: a pinned file is downloaded into our cache, the hub's it fetches itself."""
    if file.git_blob is None:
        return file.address
    from retrieval_index.download import download
    from retrieval_index.errors import ChecksumError, FetchError
    from retrieval_index.fetch import default_cache_dir, offline

    address = file.address
    place = default_cache_dir() / "datasets" / f"{file.git_blob}{Path(address).suffix}"
    if not place.exists():
        if offline():
            raise FetchError(f"{address} is not in the cache ({place}), and AGENT_RL_OFFLINE is set")
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(place.name + ".part")
        download(address, part, sha256=None, size=None, label=Path(address).name, progress=True)
        found = git_blob(part)
        if found != file.git_blob:
            part.unlink()
            raise ChecksumError(f"{address}: its content is git blob {found}, expected {file.git_blob}")
        part.rename(place)
    return str(place)


def git_blob(path: Path) -> str:
    """The id that git gives a file's content: SHA-1 of ``blob <size>\\0`` and the bytes."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

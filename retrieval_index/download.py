"""Finding a pinned file on the package index that pip is configured with, and downloading it with resume."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from retrieval_index.errors import ChecksumError, DiskFull, FetchError
from retrieval_index.progress import Progress

if TYPE_CHECKING:
    import httpx

DEFAULT_INDEX_URL = "https://pypi.org/simple/"
ATTEMPTS = 4
TIMEOUT_S = 60.0


def pip_setting(name: str) -> str | None:
    """What pip is told for ``name`` ("index-url", "cert"): its environment variable, else its config
    files.
    """
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    found = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    # pip ends with 1 where the key is not set, and python does where there is no pip: both mean "not told"
    return found.stdout.strip() or None if found.returncode == 0 else None


def index_url() -> str:
    return pip_setting("index-url") or DEFAULT_INDEX_URL


def without_credentials(url: str) -> str:
    """The URL fit for a message: an index URL may carry a user name and password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL at all: without what stands before an @
        return url.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def find_file(project: str, filename: str, endpoint: str) -> tuple[str, int | None]:
    """URL and size in bytes (where the index tells it) of one file of a project on a simple index.

    Raises FetchError where the index cannot be reached or does not have the file.
    """
    import requests
    from pypi_simple import NoSuchProjectError, PyPISimple

    shown, cert = without_credentials(endpoint), _certificates()
    try:
        with PyPISimple(endpoint) as index:
            if cert:
                index.s.verify = cert
            page = index.get_project_page(project, timeout=TIMEOUT_S)
    except NoSuchProjectError:
        raise FetchError(f"the package index {shown} has no project {project!r}; {_OTHER_INDEX}") from None
    except requests.RequestException as error:
        raise FetchError(
            f"the package index {shown} cannot be reached ({type(error).__name__}); {_OTHER_INDEX}"
        ) from error
    except ValueError as error:  # not a URL, or not a page that an index would send (a login page, say)
        raise FetchError(
            f"the package index {shown} gave no list of files ({type(error).__name__}: {_first_line(error)}); "
            f"{_OTHER_INDEX}"
        ) from error
    for package in page.packages:
        if package.filename == filename:
            return package.url, package.size
    raise FetchError(f"project {project!r} on {shown} has no file {filename!r}; {_OTHER_INDEX}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


_OTHER_INDEX = "check the network, or set PIP_INDEX_URL to an index that has it"


def _certificates() -> str | None:
    """pip's certificate file, if it is told of one. Raises FetchError where the file cannot be used."""
    cert = pip_setting("cert")
    if cert:
        try:
            ssl.create_default_context(cafile=cert)
        except OSError as error:  # ssl.SSLError too
            raise FetchError(
                f"pip's setting cert={cert} is no usable certificate file ({error.strerror or error}); "
                "mend or unset PIP_CERT"
            ) from error
    return cert


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, part: Path, *, sha256: str | None, size: int | None, label: str, progress: bool) -> None:
    """Download ``url`` to ``part``, going on where an earlier attempt stopped, and check its sum (None: the caller
    does).

    A connection that breaks is taken up again (with a Range request) a few times; then the part stays for the
    next run. Raises FetchError (network, disk) or ChecksumError (the part is deleted: it is another file).
    """
    import httpx

    broken: Exception | None = None
    cert = _certificates()
    verify = ssl.create_default_context(cafile=cert) if cert else True
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT_S, verify=verify) as client:
        for _ in range(ATTEMPTS):
            try:
                _append(client, url, part, size, label, progress)
                break
            except httpx.HTTPStatusError as error:
                raise FetchError(f"{without_credentials(url)} answered {error.response.status_code}") from error
            except httpx.TransportError as error:
                broken = error
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # too many redirects, no such URL
                raise FetchError(
                    f"{without_credentials(url)} cannot be downloaded ({type(error).__name__}: {error}); {_OTHER_INDEX}"
                ) from error
        else:
            raise FetchError(
                f"the download of {label} broke {ATTEMPTS} times ({type(broken).__name__}); "
                "run the same command again: it goes on where this one stopped"
            ) from broken
    if sha256 is not None and (found := sha256_of(part)) != sha256:
        part.unlink()
        raise ChecksumError(
            f"{label}: sha256 is {found}, expected {sha256}; the file was deleted. Run again; "
            "if it happens twice, the package index serves another file"
        )


def _append(client: httpx.Client, url: str, part: Path, size: int | None, label: str, progress: bool) -> None:
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have >= size:
        return  # complete (or too long): the checksum decides
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:
            return  # nothing beyond what we have: the checksum decides
        response.raise_for_status()
        resumed = response.status_code == 206
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else size
        with (
            disk_full_means(part.parent, total, OTHER_CACHE),
            part.open("ab" if resumed else "wb") as file,
            Progress(label, total, "B", done=have, enabled=progress) as shown,
        ):
            # written as it arrives: pieces gathered up to a size would be lost where the connection breaks
            for chunk in response.iter_raw():
                file.write(chunk)
                shown.advance(len(chunk))


@contextlib.contextmanager
def disk_full_means(folder: Path, needed_bytes: int | None, remedy: str) -> Iterator[None]:
    """Turn "no space left" into one readable DiskFull, whichever library met it and whatever it made of it."""
    try:
        yield
    except Exception as error:
        if not _no_space(error):
            raise
        size = f" ({needed_bytes / 2**20:.0f} MiB needed)" if needed_bytes else ""
        raise DiskFull(f"disk full: no space left under {folder}{size}; free some, or {remedy}") from error


OTHER_CACHE = "set AGENT_RL_CACHE to a folder on another disk"


def _no_space(error: BaseException) -> bool:
    """faiss and safetensors tell it in the text of an error of their own."""
    number = error.errno if isinstance(error, OSError) else None
    return number in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error)

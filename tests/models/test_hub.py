"""Downloading with the real huggingface_hub client from a server on loopback."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pkvchat.models import hub, library, resolve
from pkvchat.models.catalogue import CATALOGUE
from pkvchat.models.errors import ModelError
from pkvchat.models.hub import HubFile, choose, download

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 2048  # half a MiB


class FakeHub:
    """repos: files by name, or an HTTP status to answer with. The rest makes the server fail.

    cut_after: bytes of a body after which the connection breaks, once. garble: weights come with
    other bytes. short: the size the listing claims is larger than the file.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes] | int] = {}
        self.cut_after: int | None = None
        self.garble = False
        self.claimed_extra = 0
        self.ranges: list[str] = []
        self.tokens: set[str | None] = set()

    def info(self, files: dict[str, bytes]) -> bytes:
        siblings = []
        for name, data in files.items():
            entry: dict[str, Any] = {
                "rfilename": name,
                "size": len(data) + self.claimed_extra,
            }
            if name.endswith((".gguf", ".safetensors")):
                oid = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": oid, "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return json.dumps({"id": "owner/name", "siblings": siblings}).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeHub

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.fake.tokens.add(self.headers.get("Authorization"))
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            return self.answer_repo(found[1], self.fake.info)
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            name = found[2]
            return self.answer_repo(found[1], lambda files: files.get(name), name)
        return self.answer(404, b"", {})

    def answer_repo(
        self, repo: str, body: Callable[[dict[str, bytes]], bytes | None], name: str = ""
    ) -> None:
        files = self.fake.repos.get(repo, 401)
        if files == 403:
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if isinstance(files, int):
            code = {"X-Error-Code": "RepoNotFound"} if files in (401, 404) else {}
            return self.answer(files, b"", code)
        data = body(files)
        if data is None:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        etag = hashlib.sha256(data).hexdigest()
        if self.fake.garble and name.endswith(".gguf"):
            data = data[:-1] + b"!"
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        return self.answer(200, data, headers)

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and status == 200:
            self.fake.ranges.append(wanted[0])
            start, end = int(wanted[1]), int(wanted[2] or len(data) - 1)
            status, part = 206, data[start : end + 1]
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            data = part
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fake.cut_after is not None and len(data) > self.fake.cut_after:
            self.wfile.write(data[: self.fake.cut_after])
            self.wfile.flush()
            self.fake.cut_after = None
            self.close_connection = True
            return
        self.wfile.write(data)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import constants

    fake = FakeHub()
    handler = type("BoundHandler", (Handler,), {"fake": fake})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{httpd.server_port}"
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield fake
    httpd.shutdown()
    thread.join()


def silent(stage: str, done: int, total: int) -> None:
    pass


GGUF_REPO = {"README.md": b"hi", "m-Q8_0.gguf": b"8" * 9, "m-Q4_K_M.gguf": WEIGHTS}
FOLDER_REPO = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": b"b" * 100,
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}',
    "consolidated.safetensors": b"the same again",
    "pytorch_model.bin": b"pickle",
}


def test_gguf(server: FakeHub) -> None:
    server.repos["owner/name"] = GGUF_REPO
    seen: list[tuple[str, int, int]] = []
    path = download("owner/name", "", lambda *report: seen.append(report))
    assert path.name == "m-Q4_K_M.gguf"
    assert path.read_bytes() == WEIGHTS
    assert seen[-1] == ("downloading owner/name", len(WEIGHTS), len(WEIGHTS))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert download("owner/name", "Q8_0", silent).read_bytes() == b"8" * 9
    names = {model.name: model.nbytes for model in library.installed()}
    assert names["owner/name"] >= len(WEIGHTS)


def test_safetensors_folder(server: FakeHub) -> None:
    server.repos["owner/name"] = FOLDER_REPO
    folder = download("owner/name", "", silent)
    unwanted = {"consolidated.safetensors", "pytorch_model.bin"}
    assert {path.name for path in folder.iterdir()} == FOLDER_REPO.keys() - unwanted


def test_cached_without_network(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    server.repos.update({"owner/name": GGUF_REPO, "owner/folder": FOLDER_REPO})
    path = download("owner/name", "", silent)
    folder = download("owner/folder", "", silent)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download("owner/name", "", silent) == path
    assert download("owner/folder", "", silent) == folder
    (folder / "model-00001-of-00002.safetensors").unlink()
    for missing in ("owner/folder", "owner/other"):
        with pytest.raises(ModelError, match=f"{missing}: not downloaded yet"):
            download(missing, "", silent)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 5}', '{"weights": {}}'])
def test_a_damaged_index_is_no_download_to_trust(server: FakeHub, index: str) -> None:
    server.repos["owner/folder"] = FOLDER_REPO
    folder = download("owner/folder", "", silent)
    (folder / hub.INDEX).resolve().write_text(index)
    assert hub.in_cache("owner/folder", "") is None


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", ["../..", "-a/b", "a/" + "b" * 200])
def test_names_that_no_repository_can_have(name: str) -> None:
    with pytest.raises(ModelError, match="is no name of a repository"):
        download(name, "", silent)
    with pytest.raises(ModelError, match="is not downloaded"):
        library.remove(name)


def test_second_try_resumes(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks in the middle; nothing that came is fetched again."""
    server.repos["owner/name"] = GGUF_REPO
    server.cut_after = 200_000
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)
    try:
        path = download("owner/name", "", silent)
    except ModelError as error:
        assert "broke off" in str(error)  # noqa: PT017 (newer clients resume by themselves)
        path = download("owner/name", "", silent)
    assert path.read_bytes() == WEIGHTS
    assert any(int(r.removeprefix("bytes=").partition("-")[0]) > 0 for r in server.ranges)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (401, "no such repository at http://127.0.0.1:.*set HF_TOKEN"),
        (404, "no such repository"),
        (403, "is gated: accept its licence at http://127.0.0.1:.*/owner/name, then set HF_TOKEN"),
        (400, "answered with 400"),
        ({"README.md": b"hi"}, "no safetensors or GGUF"),
        ({"pytorch_model.bin": b"", "config.json": b""}, "refused"),
        ({"m-Q2_K.gguf": b"", "m-IQ1_S.gguf": b""}, "name one of IQ1_S, Q2_K"),
    ],
)
def test_refusals(server: FakeHub, answer: dict[str, bytes] | int, says: str) -> None:
    server.repos["owner/name"] = answer
    with pytest.raises(ModelError, match=says):
        download("owner/name", "", silent)


def test_quant_that_is_not_there(server: FakeHub) -> None:
    server.repos["owner/name"] = GGUF_REPO
    with pytest.raises(ModelError, match=r"has no Q5_K_M.*name one of Q4_K_M, Q8_0"):
        download("owner/name", "Q5_K_M", silent)


def test_wrong_content(server: FakeHub) -> None:
    server.repos["owner/name"] = GGUF_REPO
    server.garble = True
    with pytest.raises(ModelError, match=r"m-Q4_K_M.gguf came of another SHA-256 and is removed"):
        download("owner/name", "", silent)
    server.garble = False
    assert download("owner/name", "", silent).read_bytes() == WEIGHTS


def test_wrong_size(server: FakeHub) -> None:
    server.repos["owner/name"] = GGUF_REPO
    server.claimed_extra = 5
    with pytest.raises(ModelError, match=r"came 524288 bytes long, not 524293"):
        download("owner/name", "", silent)


@pytest.mark.usefixtures("server")
def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with socket.socket() as free:  # a port at which nobody listens
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    with pytest.raises(
        ModelError,
        match=rf"owner/name: not downloaded yet, and {nowhere} can't be reached \(.*check the n",
    ):
        download("owner/name", "", silent)


def test_from_the_command_line(server: FakeHub, tmp_path: Path) -> None:
    from huggingface_hub import constants

    server.repos.update({"owner/name": GGUF_REPO, "owner/gated": 403})
    env = os.environ | {"HF_ENDPOINT": constants.ENDPOINT, "HF_HOME": str(tmp_path / "hf")}
    env["HF_TOKEN"] = "hf_secret"

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pkvchat", *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    pulled = run("pull", "owner/name:q8_0")
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == GGUF_REPO["m-Q8_0.gguf"]
    refused = run("pull", "owner/gated")
    assert refused.returncode == 1
    assert refused.stderr.startswith("pkvchat: owner/gated is gated: accept its licence at http://")
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert run("rm", "owner/name").stdout.endswith(" bytes freed\n")
    assert "Bearer hf_secret" in server.tokens


def test_disk_full(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one failure that a test can't bring about for real without a disk to fill."""
    server.repos["owner/name"] = GGUF_REPO

    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    with pytest.raises(ModelError, match=r"the disk is full.*what was downloaded is kept"):
        download("owner/name", "", silent)


def test_remove(server: FakeHub) -> None:
    server.repos["owner/name"] = GGUF_REPO
    path = download("owner/name", "", silent)
    assert library.remove("owner/name") >= len(WEIGHTS)
    assert not path.exists()
    with pytest.raises(ModelError, match="is not downloaded"):
        library.remove("owner/name")


def test_remove_what_an_interrupted_download_left(server: FakeHub, tmp_path: Path) -> None:
    """Two repositories at one commit: the other one stays."""
    server.repos.update({"owner/name": GGUF_REPO, "owner/fork": GGUF_REPO})
    kept = download("owner/fork", "Q8_0", silent)
    blobs = tmp_path / "cache" / "models--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(b"x" * 1000)
    assert library.remove("owner/name:Q4_K_M") == 1000
    assert not blobs.parent.exists()
    assert kept.exists()


def test_catalogue_names(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Original weights where the GPU holds them and the hub lets us, else quantised ones."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(resolve, "get_token", lambda: None)
    for name in ("qwen3-8b", "llama-3-8b"):
        entry = CATALOGUE[name]
        server.repos[entry.repo] = FOLDER_REPO
        server.repos[entry.gguf_repo] = GGUF_REPO

    def found(name: str, gpu_memory: int | None) -> str:
        given = resolve.resolve(name, silent, gpu_memory)
        assert given.note.startswith(name)
        return given.path.suffix

    assert found("qwen3-8b", None) == ".gguf"
    assert found("qwen3-8b", 8 << 30) == ".gguf"
    assert found("qwen3-8b", 80 << 30) == ".gguf"  # it is here
    library.remove("qwen3-8b")
    assert found("qwen3-8b", 80 << 30) == ""  # a folder
    assert found("qwen3-8b", None) == ".gguf"
    assert found("qwen3-8b", 80 << 30) == ""
    assert found("llama-3-8b", 80 << 30) == ".gguf"
    library.remove("llama-3-8b")
    monkeypatch.setattr(resolve, "get_token", lambda: "hf_xyz")
    assert found("llama-3-8b", 80 << 30) == ""
    assert resolve.resolve("Qwen/Qwen3-8B", silent).path.is_dir()
    library.remove("llama-3-8b")
    server.repos[CATALOGUE["llama-3-8b"].repo] = 403  # a token, but the licence is not accepted
    found_instead = resolve.resolve("llama-3-8b", silent, 80 << 30)
    assert found_instead.path.suffix == ".gguf"
    assert "is gated" in found_instead.note
    repo = CATALOGUE["qwen3-8b"].gguf_repo
    assert resolve.resolve(f"{repo}:Q8_0", silent).path.name == "m-Q8_0.gguf"


def test_choice_of_files() -> None:
    def names(files: list[str], quant: str) -> list[str]:
        return [f.name for f in choose([HubFile(n, 1, "") for n in files], "o/n", quant)]

    split = [f"big-Q4_K_M-0000{i}-of-00003.gguf" for i in (2, 1, 3)]
    assert names([*split, "big-Q8_0.gguf"], "q4_k_m") == sorted(split)
    assert names(["Q4_K_S.gguf", "x/m-Q4_K_M.gguf"], "Q4_K_M") == ["x/m-Q4_K_M.gguf"]
    assert names(["m.Q4_K_M.gguf", "mmproj-Q8_0.gguf"], "") == ["m.Q4_K_M.gguf"]
    assert names(["only.gguf"], "") == ["only.gguf"]
    assert hub.QUANT_ORDER[0] == "Q4_K_M"

"""A blob comes to a node once, whole and checked."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import fsspec
import pytest

import smolrun
from conftest import Corpus, on_a_small_disk


class Server(http.server.ThreadingHTTPServer):
    """Files of a folder, and how often each was asked for."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def server(few: Corpus) -> Iterator[Server]:
    with Server(few.blob.parent) as server:
        yield server
        server.shutdown()


def test_all_processes_of_a_node_fetch_it_once(few: Corpus, server: Server, tmp_path: Path) -> None:
    fetch = functools.partial(smolrun.distribute, folder=tmp_path)
    with ProcessPoolExecutor(6, multiprocessing.get_context("spawn")) as pool:
        paths = set(pool.map(fetch, [f"{server.url}/tales.bin"] * 12))
    assert server.asked == ["/tales.bin"] and len(paths) == 1
    assert paths.pop().read_bytes() == few.blob.read_bytes()


def test_a_path_is_where_it_is(few: Corpus) -> None:
    assert smolrun.distribute(few.blob) == few.blob
    with pytest.raises(smolrun.BlobError, match="expected the blob 00"):
        smolrun.distribute(few.blob, sha256="00")


def test_what_is_no_blob_gets_no_name(few: Corpus, server: Server, tmp_path: Path) -> None:
    content = bytearray(few.blob.read_bytes())
    content[len(content) // 2] ^= 1
    (few.blob.parent / "damaged.bin").write_bytes(content)
    (few.blob.parent / "short.bin").write_bytes(few.blob.read_bytes()[:-1])
    for name in ("damaged.bin", "short.bin", "answers.jsonl"):
        with pytest.raises(smolrun.BlobError, match=name):
            smolrun.distribute(f"{server.url}/{name}", folder=tmp_path)
    with pytest.raises(smolrun.BlobError, match="expected the blob 00"):
        smolrun.distribute(f"{server.url}/tales.bin", folder=tmp_path, sha256="00")
    with pytest.raises(smolrun.FileMissingError, match=r"File not found: '.*/gone.bin'"):
        smolrun.distribute(f"{server.url}/gone.bin", folder=tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".lock"}


FULL = """
import sys, smolrun
try:
    smolrun.distribute(sys.argv[1], folder=sys.argv[2])
except smolrun.FileError as error:
    print(error)
"""


def test_a_full_disk_is_one_error(few: Corpus, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    told = on_a_small_disk(disk, FULL, few.blob.as_uri(), disk)
    assert told.startswith(f"[Errno 28] No space left on device: '{disk}/") and told.endswith(".bin'\n"), told


def test_object_stores_are_fsspec_s(few: Corpus, tmp_path: Path) -> None:
    with fsspec.open("memory://bucket/tales.bin", "wb") as file:
        file.write(few.blob.read_bytes())
    path = smolrun.distribute("memory://bucket/tales.bin", folder=tmp_path, sha256=smolrun.load(few.blob).sha256)
    assert path.parent == tmp_path and smolrun.load(path).generate("Once", max_tokens=4).ids
    with pytest.raises(smolrun.FileMissingError, match="memory://bucket/gone.bin"):
        smolrun.distribute("memory://bucket/gone.bin", folder=tmp_path)
    assert smolrun.distribute(few.blob.as_uri(), folder=tmp_path) != few.blob

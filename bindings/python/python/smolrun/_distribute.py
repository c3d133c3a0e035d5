"""A blob's way to a node: fetched once, checked, and mapped by all workers there."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import urllib.parse
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import smolrun
from smolrun._worker import is_url

_PIECE = 1 << 20
_SILENCE = 60
"""Seconds that a server may send nothing: all workers of a node wait for one."""


def distribute(
    source: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    **storage: Any,
) -> Path:
    """Where this node has the blob of a path or a URL.

    A path is where it is. What a URL names is fetched into folder, by the first process that asks; all others of the
    node wait for it. It is checked, every byte by the blob's own hashes, before it gets its name. http, https and file
    are fetched by Python itself; s3, gs, hf and all else by fsspec, which is given `storage`.

    sha256: the blob's Model.sha256; another blob is a BlobError
    folder: by default the directory `smolrun/distributed` in XDG_CACHE_HOME or ~/.cache; it should lie on a disk of the node
    """
    given = os.fspath(source)
    if not is_url(given):
        path = Path(given)
        _check(path, sha256, verify=False)
        return path
    parent = Path(folder) if folder is not None else _cache()
    parent.mkdir(parents=True, exist_ok=True)
    # Not what a URL may have of secrets.
    name = hashlib.sha256(given.encode()).hexdigest()[:16] + (f"-{sha256[:16]}" if sha256 else "")
    path = parent / f"{name}.bin"
    with open(parent / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            _check(path, sha256, verify=False)
        else:
            _fetch(given, path, sha256, storage)
    return path


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "smolrun" / "distributed"


def _fetch(url: str, path: Path, sha256: str | None, storage: dict[str, Any]) -> None:
    for rest in path.parent.glob(f"{path.name}.*.part"):  # of who was killed
        rest.unlink()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".part") as part:
        try:
            with _opened(url, storage) as remote:
                shutil.copyfileobj(remote, part, _PIECE)
            part.flush()
            os.fsync(part.fileno())
        except OSError as error:
            raise _told(error, url, path) from error
        _check(Path(part.name), sha256, verify=True, shown=_shown(url))
        os.link(part.name, path)


def _opened(url: str, storage: dict[str, Any]) -> AbstractContextManager[IO[bytes]]:
    if url.split("://")[0] in ("http", "https", "file"):
        import urllib.request  # which takes longer than a blob to open

        opened: AbstractContextManager[IO[bytes]] = urllib.request.urlopen(url, timeout=_SILENCE)
        return opened
    import fsspec  # an optional package

    file: AbstractContextManager[IO[bytes]] = fsspec.open(url, "rb", **storage).open()
    return file


def _told(error: OSError, url: str, path: Path) -> smolrun.FileError:
    """Why nothing was fetched."""
    reason = getattr(error, "reason", None)  # of urllib's URLError
    if isinstance(reason, OSError):
        error = reason
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return smolrun.FileError(error.errno, error.strerror, str(path))
    is_missing = error.errno == errno.ENOENT or isinstance(error, FileNotFoundError) or getattr(error, "code", 0) == 404
    number = errno.ENOENT if is_missing else error.errno or errno.EIO
    kind = smolrun.FileMissingError if is_missing else smolrun.FileError
    return kind(number, str(error.strerror or getattr(error, "reason", None) or error), _shown(url))


def _check(path: Path, sha256: str | None, *, verify: bool, shown: str | None = None) -> None:
    """That a file is a blob, and the one with that hash."""
    if sha256 is None and not verify:
        return
    try:
        with smolrun.load(path, threads=None, verify=verify) as model:
            found = model.sha256
    except smolrun.BlobError as error:
        raise smolrun.BlobError(f"{shown or path}: {error}") from error
    if sha256 not in (None, found):
        raise smolrun.BlobError(f"{shown or path}: expected the blob {sha256}, found {found}")


def _shown(url: str) -> str:
    """A URL without what only its owner should see."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

"""The exceptions, each for some of the codes that errors have."""

from __future__ import annotations

import errno as _errno
import os


class Error(Exception):
    """An error of smolrun. Its code says which, and never changes its meaning: see the table in docs/python.md."""

    code: str = "error"


class ArgumentError(Error, ValueError):
    """An argument has a value it may not have (argument, argument.token_id)."""

    code = "argument"


class BlobError(Error):
    """A file is no blob that this version can run (blob.magic, blob.version, blob.checksum, ...)."""

    code = "blob"


class BusyError(Error):
    """A signal handler or an iterator uses what its own thread is using already (busy)."""

    code = "busy"


class ChatTemplateError(Error):
    """The model has no chat template, or it cannot be used (chat_template)."""

    code = "chat_template"


class ClosedError(Error, ValueError):
    """Something was used after it was closed (closed)."""

    code = "closed"


class ContextError(Error):
    """There are more tokens than the model's context has room for (context_full, text_too_long)."""

    code = "context_full"


class ConvertError(Error):
    """A checkpoint cannot be fetched or converted (convert)."""

    code = "convert"


class FileError(Error, OSError):
    """A file cannot be opened, read or written (io)."""

    code = "io"


class FileMissingError(FileError, FileNotFoundError):
    """A file is not there (io)."""


class ForkedError(Error):
    """A session, stream or batch of the parent was used in a child that was forked (forked)."""

    code = "forked"


class NotFiniteError(Error, ArithmeticError):
    """The model computed NaN or infinity: its weights are damaged (not_finite)."""

    code = "not_finite"


class OutOfMemoryError(Error, MemoryError):
    """There is no memory for something (out_of_memory, kv_budget)."""

    code = "out_of_memory"


class SavedSessionError(Error):
    """A file is no session that this one can continue (saved_session)."""

    code = "saved_session"


class StreamEndedError(Error):
    """A stream was asked for more after something else was begun on its session (stream_ended)."""

    code = "stream_ended"


_BY_CODE: dict[str, type[Error]] = {
    "argument": ArgumentError,
    "blob": BlobError,
    "busy": BusyError,
    "chat_template": ChatTemplateError,
    "closed": ClosedError,
    "context_full": ContextError,
    "convert": ConvertError,
    "forked": ForkedError,
    "kv_budget": OutOfMemoryError,
    "not_finite": NotFiniteError,
    "out_of_memory": OutOfMemoryError,
    "saved_session": SavedSessionError,
    "stream_ended": StreamEndedError,
    "text_too_long": ContextError,
}


def error(code: str, message: str) -> Error:
    """The exception for a code."""
    made = _BY_CODE.get(code.partition(".")[0], Error)(message)
    made.code = code
    return made


def file_error(errno: int | None, message: str, path: os.PathLike[str], is_missing: bool = False) -> FileError:
    """The exception for what was said of a file: by the operating system, where there is its number."""
    said = message if errno is None else os.strerror(errno)
    if is_missing or errno == _errno.ENOENT:
        return FileMissingError(_errno.ENOENT, said, os.fspath(path))
    return FileError(errno, said, os.fspath(path))

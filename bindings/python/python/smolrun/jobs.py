"""A corpus from files into files, exactly once.

    from smolrun import jobs
    from smolrun.tasks import Generate

    jobs.run("reviews.parquet", "answers", "smol.bin", Generate("Summarize: {text}", options={"max_tokens": 64}))
    jobs.verify("answers")

The rows are cut into shards. Whoever computes one writes it under another name, renames it, and then writes its record
beside it. So a shard is there whole or not at all, and a second start does what is missing. A shard that is computed
twice is the same bytes twice.

Files lie where all workers see them under the same paths: on this machine, or on a file system that all share.
Parquet gives Parquet (pyarrow does it), JSONL gives JSONL. The folder of the output has part-00000.parquet and so on,
in the order of the rows, and `_smolrun`: job.json says what the results depend on, manifest.json has each shard's hash
once all are done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import smolrun
from smolrun import tasks
from smolrun._progress import Line
from smolrun._worker import Blob, Tally, Worker, check_names, decided, rows_of
from smolrun.tasks import Result, Row, RowError, Task, _plain

Manifest = dict[str, Any]
"""What manifest.json says: the job, and of each shard its name, rows, errors, tokens, seconds and sha256."""

Over: TypeAlias = Callable[[Callable[[int], Manifest], Sequence[int]], Iterable[Manifest]]
"""What calls a function with each item, in any order and anywhere: map, a ProcessPoolExecutor's map, smolrun.ray.over,
smolrun.spark.over."""

_PIECE = 1 << 20
_TASKS: dict[str, type[Any]] = {kind.__name__: kind for kind in (tasks.Generate, tasks.Embed, tasks.Score)}


class JobError(smolrun.Error):
    """A folder's files are not those of the job (job)."""

    code = "job"


@dataclass(frozen=True)
class Span:
    """Some rows of a file."""

    path: str
    start: int
    """The first row's number, from 0; of JSONL, its line's."""
    rows: int
    offset: int = 0
    """Of JSONL, where its bytes begin, and how many there are."""
    length: int = 0


def run(
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    model: str | os.PathLike[str],
    task: Task,
    *,
    shard_rows: int = 1000,
    over: Over | None = None,
    threads: int | None = None,
    kv: str | None = None,
    progress: bool | None = None,
    force: bool = False,
) -> Manifest:
    """Give the rows of files their results, in the files of a folder.

    input: a .parquet or .jsonl file, several of one kind, or a folder with some
    model: as of smolrun.load, or a URL as of smolrun.distribute
    shard_rows: rows of a shard, at most
    over: who computes; by default this process, with `threads` threads. smolrun.ray.over(...) is a Ray cluster
    threads: how many each worker computes with
    progress: whether standard error is told how far it is; by default if it is a terminal
    force: whether what another job left in the folder is replaced. No other file there may be called part-*

    Called again, it does what is missing. Returns the manifest. What is wrong with a row is in the row's column
    `error`. A disk that is full, or a file that is not there, ends it with one error that names the file; then the same
    call goes on.
    """
    if shard_rows < 1:
        raise smolrun.ArgumentError(f"shard_rows: expected a number from 1 up, found {shard_rows}")
    if type(task) not in _TASKS.values():
        raise smolrun.ArgumentError(f"task: expected {', '.join(_TASKS)}, found {type(task).__name__}")
    folder = Path(output).absolute()
    given = _files(input)
    for file in given:
        if file.parent.resolve() == folder.resolve():
            raise smolrun.ArgumentError(f"input: {file}: expected a file outside of the output's folder")
    state = folder / "_smolrun"
    with _telling_of(state):
        state.mkdir(parents=True, exist_ok=True)
    with _locked(state):
        files, spans = _survey(given, shard_rows)
        blob = Blob.of(model, kv)
        list(task.results(blob.open(threads), []))  # wrong options are an error before anything is changed
        job = _begun(state, _job(files, spans, blob, task, shard_rows), force)
        blob = dataclasses.replace(blob, sha256=job["blob"])
        shards = Shards(folder, blob, _task(job["task"]), spans, threads)
        records = dict(enumerate(map(shards.done, range(len(spans)))))
        missing = [number for number, record in records.items() if record is None]
        line = Line(progress)
        so_far = [record for record in records.values() if record is not None]
        for record in _computed(shards, missing, over):
            so_far.append(record)
            line.show(_told(so_far, len(spans)))
        line.end()
        return _ended(shards, job)


def verify(
    output: str | os.PathLike[str],
    *,
    rows: int = 100,
    seed: int = 0,
    model: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> int:
    """Check a job's files: the hash of each, and the results of some rows, which are computed again.

    rows: how many, drawn by seed; model: where the blob is, if it has moved. Returns how many rows were computed.
    JobError names the file, the row and the column that differ in as much as a bit.
    """
    folder = Path(output)
    manifest = _read(folder / "_smolrun" / "manifest.json")
    if manifest is None:
        raise JobError(f"{folder}: expected a job that is done, found no manifest")
    job = manifest["job"]
    task: Task = _task(job["task"])
    spans = [Span(**span) for span in job["spans"]]
    for shard in manifest["shards"]:
        if _sha256(folder / shard["name"]) != shard["sha256"]:
            raise JobError(f"{folder / shard['name']}: its bytes are not those that were written")
    for file in job["input"]:
        if _sha256(Path(file["path"])) != file["sha256"]:
            raise JobError(f"{file['path']}: it is not the input any more")
    blob = Blob(os.fspath(model) if model is not None else job["model"], job["blob"], job["kv"])
    worker = Worker(blob, task, threads)
    numbers = [(i, row) for i, shard in enumerate(manifest["shards"]) for row in range(shard["rows"])]
    chosen = sorted(random.Random(seed).sample(numbers, min(rows, len(numbers))))
    for i in dict.fromkeys(i for i, _ in chosen):
        own = [row for shard, row in chosen if shard == i]
        given, written = list(_rows(spans[i], task)), _written(folder / manifest["shards"][i]["name"], task)
        for row, result in zip(own, worker.results(given[row] for row in own), strict=True):
            for name in task.fields:
                if _plain(result[name]) != written[row][name]:
                    at = f"{folder / manifest['shards'][i]['name']}, row {row + 1}, column {name}"
                    found, expected = _short(result[name]), _short(written[row][name])
                    raise JobError(f"{at}: computed again, it is {found}, not {expected}")
    return len(chosen)


@dataclass(frozen=True)
class Shards:
    """What computes the shard of a number, in any process that sees the files."""

    folder: Path
    blob: Blob
    task: Task
    spans: Sequence[Span]
    threads: int | None

    def __call__(self, number: int) -> Manifest:
        """Compute a shard, write it, and return its record."""
        span = self.spans[number]
        worker = Worker(self.blob, self.task, self.threads)
        with _telling_of(Path(span.path)):
            content = _shard(span, worker)
        name = self.name(number)
        with _telling_of(self.folder / name):
            self._write(self.folder / name, content)
            record = {"name": name, **dataclasses.asdict(worker.tally)}
            record |= {"sha256": hashlib.sha256(content).hexdigest(), "worker": f"{socket.gethostname()}:{os.getpid()}"}
            self._write(self._record(number), json.dumps(record).encode())
        return record

    def name(self, number: int) -> str:
        """The file of a shard."""
        return _shard_name(number, self.spans[number].path)

    def done(self, number: int) -> Manifest | None:
        """The record of a shard, if it is done and its file is as it was written."""
        record = _read(self._record(number))
        path = self.folder / self.name(number)
        return record if record is not None and path.exists() and _sha256(path) == record["sha256"] else None

    def _record(self, number: int) -> Path:
        return self.folder / "_smolrun" / f"part-{number:05}.json"

    def _write(self, path: Path, content: bytes) -> None:
        """A file that is there whole or not at all."""
        who = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
        part = self.folder / "_smolrun" / f"{path.name}.{who}.part"
        try:
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _shard_name(number: int, path: str) -> str:
    """The file of a shard whose rows are from `path`."""
    return f"part-{number:05}{Path(path).suffix}"


class _Bad(Mapping[str, Any]):
    """A row that cannot be read: whoever asks for one of its values is told why."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def __getitem__(self, name: str) -> Any:
        raise RowError(self.problem)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _files(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files of an input, all of one kind."""
    paths = [Path(given)] if isinstance(given, str | os.PathLike) else [Path(each) for each in given]
    if len(paths) == 1 and paths[0].is_dir():
        paths = sorted(path for path in paths[0].iterdir() if path.suffix in (".parquet", ".jsonl"))
    kinds = {path.suffix for path in paths}
    if not paths or kinds not in ({".parquet"}, {".jsonl"}):
        found = ", ".join(sorted(kinds)) or "none"
        raise smolrun.ArgumentError(f"input: expected .parquet files or .jsonl files, found {found}")
    return [path.absolute() for path in paths]


def _survey(paths: Sequence[Path], shard_rows: int) -> tuple[list[dict[str, Any]], list[Span]]:
    """What identifies files, and the spans of all their rows."""
    files, spans = [], []
    for path in paths:
        with _telling_of(path):
            if path.suffix == ".parquet":
                spans += _parquet_spans(path, shard_rows)
                sha256 = _sha256(path)
            else:
                found, sha256 = _jsonl_spans(path, shard_rows)
                spans += found
            files.append({"path": str(path), "sha256": sha256})
    return files, spans


def _parquet_spans(path: Path, shard_rows: int) -> list[Span]:
    import pyarrow.parquet as pq

    rows = pq.read_metadata(path).num_rows
    return [Span(str(path), start, min(shard_rows, rows - start)) for start in range(0, rows, shard_rows)]


def _jsonl_spans(path: Path, shard_rows: int) -> tuple[list[Span], str]:
    """The spans of a file's lines, those with nothing in them left out of the count, and its hash."""
    spans, hashed = [], hashlib.sha256()
    first = rows = offset = at = line = 0
    with open(path, "rb") as file:
        for text in file:
            hashed.update(text)
            line, at = line + 1, at + len(text)
            rows += not text.isspace()
            if rows == shard_rows:
                spans.append(Span(str(path), first, rows, offset, at - offset))
                first, rows, offset = line, 0, at
    if rows:
        spans.append(Span(str(path), first, rows, offset, at - offset))
    return spans, hashed.hexdigest()


def _rows(span: Span, task: Task) -> Iterator[Row]:
    if Path(span.path).suffix == ".parquet":
        return rows_of(_table(span), task)
    return (row for row in _lines(span, task))


def _lines(span: Span, task: Task) -> Iterator[Row]:
    with open(span.path, "rb") as file:
        file.seek(span.offset)
        content = file.read(span.length)
    for number, text in enumerate(content.split(b"\n"), span.start + 1):
        if text and not text.isspace():
            yield _line(text, number, task)


def _line(text: bytes, number: int, task: Task) -> Row:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _Bad(f"line {number}: expected a JSON object: {error}")
    if not isinstance(row, dict):
        return _Bad(f"line {number}: expected a JSON object, found {type(row).__name__}")
    twice = [name for name in task.fields if name in row]
    return _Bad(f"line {number}: column {twice[0]}: the row has one already") if twice else row


def _table(span: Span) -> Any:
    """The table of a span: only row groups that it has rows of are read."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(span.path) as file:
        groups, skipped, seen = [], 0, 0
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if seen + rows <= span.start:
                skipped = seen + rows
            elif seen < span.start + span.rows:
                groups.append(number)
            seen += rows
        return file.read_row_groups(groups).slice(span.start - skipped, span.rows)


def _shard(span: Span, worker: Worker) -> bytes:
    """The bytes of a shard's file."""
    if Path(span.path).suffix != ".parquet":
        rows = list(_lines(span, worker.task))
        results = worker.results(rows)
        lines = ({**row, **result} for row, result in zip(rows, results, strict=True))
        return "".join(json.dumps(line, default=_plain) + "\n" for line in lines).encode()
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(worker.table(_table(span)), sink, compression="zstd")
    return bytes(sink.getvalue())


def _written(path: Path, task: Task) -> list[Result]:
    """The results in a shard's file."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows: list[Result] = pq.read_table(path, columns=list(task.fields)).to_pylist()
        return rows
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _job(files: list[dict[str, Any]], spans: list[Span], blob: Blob, task: Task, shard_rows: int) -> Manifest:
    """All that the results depend on."""
    for span in spans[:1]:
        if Path(span.path).suffix == ".parquet":
            check_names(_table(Span(span.path, 0, 1)).column_names, task)
    return {
        "version": smolrun.__version__,
        "input": files,
        "shard_rows": shard_rows,
        "spans": [dataclasses.asdict(span) for span in spans],
        "model": blob.source,
        "blob": blob.sha256 or blob.open(1).sha256,
        "kv": blob.kv,
        "task": _told_of(task),
    }


def _told_of(task: Any) -> Manifest:
    """A task as a job has it."""
    return {"kind": type(task).__name__, **dataclasses.asdict(task)}


def _task(told: Mapping[str, Any]) -> Any:
    """The task of a job."""
    return _TASKS[told["kind"]](**{name: value for name, value in told.items() if name != "kind"})


def _begun(state: Path, job: Manifest, force: bool) -> Manifest:
    """The job that the folder has, if it is this one, or this one. It keeps the time that it was begun."""
    path = state / "job.json"
    earlier = _read(path)
    job = json.loads(json.dumps(job))
    if earlier is not None and not force:
        for name in ("version", "blob", "kv", "task", "input", "shard_rows"):
            begun, ours = earlier[name], job[name]
            if name == "task" and "now" not in ours.get("options", {}):
                begun = begun | {"options": {k: v for k, v in begun.get("options", {}).items() if k != "now"}}
                ours = ours | {"options": ours.get("options", {})}
            if begun != ours:
                raise JobError(f"{state.parent}: the job that was begun is another: {name} is not the same")
        return earlier
    _clear(state, earlier)
    job["task"] = _told_of(decided(_task(job["task"])))
    with _telling_of(path):
        Shards(state.parent, Blob(""), _task(job["task"]), [], None)._write(path, json.dumps(job).encode())
    return job


def _clear(state: Path, earlier: Manifest | None) -> None:
    """Remove what an earlier job left in its folder. JobError names a file that looks like a shard and is of no job."""
    shards = earlier["spans"] if earlier is not None else []
    ours = {_shard_name(number, span["path"]) for number, span in enumerate(shards)}
    for file in sorted(state.parent.glob("part-*")):
        if file.name not in ours:
            raise JobError(f"{file}: no job here wrote it; expected a folder without other files called part-*")
    for stale in [*state.glob("*.json"), *(state.parent / name for name in ours)]:
        stale.unlink(missing_ok=True)


def _computed(shards: Shards, missing: Sequence[int], over: Over | None) -> Iterable[Manifest]:
    if not missing:
        return []
    return (over or map)(shards, missing)


def _ended(shards: Shards, job: Manifest) -> Manifest:
    """The manifest, written; and nothing else is left."""
    records = [_read(shards._record(number)) for number in range(len(shards.spans))]
    state = shards.folder / "_smolrun"
    manifest = {"job": job, "shards": records}
    with _telling_of(state / "manifest.json"):
        shards._write(state / "manifest.json", json.dumps(manifest, indent=1).encode())
    for part in state.glob("*.part"):  # of who was killed
        part.unlink(missing_ok=True)
    return manifest


def _told(records: Sequence[Manifest], shards: int) -> str:
    names = [each.name for each in dataclasses.fields(Tally)]
    tallies = [Tally(**{name: record[name] for name in names}) for record in records]
    workers = len({record["worker"] for record in records})
    return f"shard {len(records)} of {shards}, {sum(tallies, Tally()).told(workers)}"


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    """For as long as a job is at work."""
    with open(state / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobError(f"{state.parent}: another process is at work on it") from None
        yield


@contextlib.contextmanager
def _telling_of(path: Path) -> Iterator[None]:
    """What the system says of a file, with its name."""
    try:
        yield
    except smolrun.Error:
        raise
    except OSError as error:
        kind = smolrun.FileMissingError if error.errno == errno.ENOENT else smolrun.FileError
        raise kind(error.errno, error.strerror or str(error), error.filename or str(path)) from error


def _read(path: Path) -> Manifest | None:
    try:
        told: Manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise JobError(f"{path}: expected what a job wrote: {error}") from None
    return told


def _sha256(path: Path) -> str:
    hashed = hashlib.sha256()
    with _telling_of(path), open(path, "rb") as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.hexdigest()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""The records of a file of traces: a record for each session, or sub-agent, in it."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from penstock.errors import SourceError
from penstock.extras.traces.documents import DOCUMENTS
from penstock.extras.traces.harnesses import HARNESSES, harness_of
from penstock.extras.traces.secrets import without_secrets
from penstock.extras.traces.session import Event, Session, UnknownTrace
from penstock.extras.traces.settings import TraceOptions
from penstock.places.files import is_folder, is_remote, open_file
from penstock.places.place import File, FileId
from penstock.sources.files import Files
from penstock.sources.opener import OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import BadRow, Record

_log = logging.getLogger("penstock")

ANY = "agent_trace"
# Keys of an event, of its payload or its message, that say what it is and which one.
_NAMES = ("type", "subtype", "role", "id", "uuid", "parentId", "parentUuid")


class TraceRows(FileRecords):
    """The sessions of one file.  A file that cannot be read is one bad record."""

    def __init__(self, file: File, harness: str, options: TraceOptions) -> None:
        self.file = file
        self.num_bytes = file.identity.size
        self._harness = harness
        self._options = options
        self._records: list[tuple[int, Record | BadRow]] = self._read()

    def __len__(self) -> int:
        return len(self._records)

    def record(self, row: int) -> Record | BadRow:
        self.file.check()
        return self._records[row][1]

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for row in range(first, last):
            yield self.record(row)

    def locate(self, row: int) -> tuple[int, int]:
        return self._records[row][0], 0

    def _read(self) -> list[tuple[int, Record | BadRow]]:
        content = self.file.read(0, self.file.identity.size)
        if self._harness in DOCUMENTS:
            return self._read_documents(content)
        try:
            events = list(_events(content))
            harness = harness_of(events) if self._harness == ANY else self._harness
            sessions = HARNESSES[harness](events, self._options.on_unknown == "skip")
        except UnknownTrace as error:
            return [(1, BadRow(reason="bad_value", message=str(error)))]
        return [(session.line, self._finished(session)) for session in sessions]

    def _read_documents(self, content: bytes) -> list[tuple[int, Record | BadRow]]:
        """Return the records of documents: those that cannot be read are bad records, each by itself."""
        found: list[tuple[int, Record | BadRow]] = []
        try:
            events = list(_documents(content))
        except UnknownTrace as error:
            return [(1, BadRow(reason="bad_value", message=str(error)))]
        for event in events:
            try:
                sessions = DOCUMENTS[self._harness](event)
            except UnknownTrace as error:
                found.append((event.line, BadRow(reason="bad_value", message=str(error))))
                continue
            found += [(session.line, self._finished(session)) for session in sessions]
        return found

    def _finished(self, session: Session) -> Record | BadRow:
        """Return the record of a session, with its secrets masked, kept or refused."""
        return without_secrets(
            session.record(), ("messages", "tools"), self._options, line=session.line
        )


def _events(content: bytes) -> Iterator[Event]:
    """Yield the objects of lines."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield Event(number, _parsed(line, number))


def _documents(content: bytes) -> Iterator[Event]:
    """Yield the objects of a file that is one, a list of them, or one in each line."""
    try:
        whole = orjson.loads(content)
    except orjson.JSONDecodeError:
        yield from _events(content)
        return
    for value in whole if isinstance(whole, list) else [whole]:
        if not isinstance(value, dict):
            raise UnknownTrace(f"line 1: found {type(value).__name__}, expected an object")
        yield Event(1, value)


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UnknownTrace(f"line {number}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnknownTrace(f"line {number}: found {type(value).__name__}, expected an object")
    for holder in (value, value.get("payload"), value.get("message")):
        if isinstance(holder, dict):
            _expect_names(holder, number)
    return value


def _expect_names(holder: dict[str, Any], number: int) -> None:
    for key in _NAMES:
        value = holder.get(key)
        if isinstance(value, list | dict):
            raise UnknownTrace(f"line {number}: {key!r} is {type(value).__name__}, expected text")


class TraceReader(FileReader):
    """Opens files of traces."""

    def __init__(self, harness: str, options: TraceOptions) -> None:
        self.format = harness
        self.options: TraceOptions = options

    def open_rows(self, file: FileId) -> FileRecords:
        return TraceRows(open_file(file), self.format, self.options)


def open_traces(harness: str, request: OpenRequest) -> Files:
    """Open files of traces; of a folder, all files below it that can be some."""
    paths = [path for each in request.paths for path in _files_of(each, harness)]
    return open_files(
        OpenRequest(
            paths=paths,
            options=request.options,
            cache=request.cache,
            name=request.name or Path(request.paths[0]).stem,
            bad=request.bad,
        ),
        TraceReader(harness, request.options),
    )


def _files_of(path: str, harness: str) -> Sequence[str]:
    if is_remote(path) or not is_folder(path):
        return [path]
    suffixes = (".json", ".jsonl") if harness in DOCUMENTS else (".jsonl",)
    found = sorted(str(file) for file in Path(path).rglob("*") if file.suffix in suffixes)
    if not found:
        raise SourceError(f"{path}: no file that ends with {' or '.join(suffixes)}")
    return found

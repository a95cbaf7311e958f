"""Folders of Parquet chunks with a `metadata.json`.

sequifier writes a row for each window *and column*: `inputCol` names the column, and the steps of the window are columns that are called by
their distance from the end, "6", "5" … "0".  Such rows are put together, so that a record is one window, with the names and types that the
same window has in a `.pt` chunk.  Other Parquet files are read as they are.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.extras.formats.chunks import CURRICULUM, METADATA, PER_SAMPLE, listed_chunks
from penstock.places.files import read_json
from penstock.places.place import FileId
from penstock.sources.files import Files
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.parquet import ParquetOptions, open_parquet
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import BadRow, Record
from penstock.words import did_you_mean, plural

_COLUMN = "inputCol"
_SEQUENCE = "sequenceId"
_CURRICULUM = "__sequifier_curriculum_value__"


class WindowLayout:
    """How the rows of a folder make windows: one row for each variable, one column for each step."""

    def __init__(self, row: Record, types: dict[str, Any]) -> None:
        """row: any of the folder.  types: of the variables by their names, as the metadata says them."""
        self.steps = sorted(filter(str.isdecimal, row), key=int, reverse=True)
        numbers = [name for name in row if name not in self.steps and name != _COLUMN]
        # in the order of .pt chunks: curriculum columns first
        beside = sorted(numbers, key=lambda name: not name.startswith(_CURRICULUM))
        self.per_sample = {name: _own_name(name) for name in beside}
        self.dtypes = {name: _numpy_type(name, text) for name, text in types.items()}

    def same_window(self, one: Record, other: Record) -> bool:
        return all(one[name] == other[name] for name in self.per_sample)

    def values(self, row: Record) -> npt.NDArray[Any]:
        """Return the steps of a row, in order, in the type of its variable."""
        name = row[_COLUMN]
        return np.array([row[step] for step in self.steps], dtype=self.dtypes.get(name))


class WindowRows(FileRecords):
    """The windows of one file, each made of as many neighbouring rows as there are variables."""

    def __init__(
        self,
        rows: FileRecords,
        num_samples: int,
        layout: WindowLayout,
        variables: tuple[str, ...],
        chosen: tuple[str, ...],
    ) -> None:
        self.file = rows.file
        self.num_bytes = rows.num_bytes
        self._rows = rows
        self._num_samples = num_samples
        self._layout = layout
        self._variables = variables  # of each window
        self._chosen = chosen  # of them, those that are read

    def __len__(self) -> int:
        return self._num_samples

    def record(self, row: int) -> Record | BadRow:
        return next(self.records(row, row + 1))

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        count = len(self._variables)
        held: list[Record | BadRow] = []
        for stored in self._rows.records(first * count, last * count):
            held.append(stored)
            if len(held) == count:
                yield self._window(held)
                held = []

    def locate(self, row: int) -> tuple[int, int]:
        return self._rows.locate(row * len(self._variables))

    def close(self) -> None:
        self._rows.close()

    def _window(self, stored: list[Record | BadRow]) -> Record | BadRow:
        rows: dict[str, Record] = {}
        for row in stored:
            if isinstance(row, BadRow):
                return row
            rows[row[_COLUMN]] = row
        first = next(iter(rows.values()))
        layout = self._layout
        are_whole = all(layout.same_window(first, row) for row in rows.values())
        if sorted(rows) != sorted(self._variables) or not are_whole:
            found = ", ".join(str(name) for name in rows)
            return BadRow(
                reason="bad_value",
                message=f"{plural(len(stored), 'row')} for {found}, expected one window with {', '.join(self._variables)}; "
                f"make the folder again",
            )
        window: Record = {name: layout.values(rows[name]) for name in self._chosen}
        return {**window, **{own: first[name] for name, own in layout.per_sample.items()}}


class WindowReader(FileReader):
    """Opens Parquet files of windows with the reader of Parquet."""

    format = "parquet_chunks"

    def __init__(
        self,
        reader: FileReader,
        num_samples: dict[str, int],
        layout: WindowLayout,
        variables: tuple[str, ...],
        chosen: tuple[str, ...],
    ) -> None:
        """num_samples: of each file, by its path."""
        self.options = reader.options
        self._reader = reader
        self._num_samples = num_samples
        self._layout = layout
        self._variables = variables
        self._chosen = chosen

    def open_rows(self, file: FileId) -> FileRecords:
        rows = self._reader.open_rows(file)
        listed = self._num_samples[file.path]
        if len(rows) != listed * len(self._variables):
            raise SourceError(
                f"{file.path}: {plural(len(rows), 'row')}, but {METADATA} says {plural(listed, 'sample')}, and each has "
                f"{plural(len(self._variables), 'row')} (one for {', '.join(self._variables)}); make the folder again"
            )
        return WindowRows(rows, listed, self._layout, self._variables, self._chosen)


def open_parquet_chunks(request: OpenRequest) -> Files:
    """Open the Parquet files that a folder's metadata.json lists, in its order."""
    folder = request.folder("Parquet chunks")
    num_samples = listed_chunks(folder, ".parquet")
    asked = request.of_folder(list(num_samples))
    options: ParquetOptions = request.options
    whole = open_parquet(replace(asked, options=replace(options, columns=None)))
    row = whole[0] if len(whole) else {}
    if _COLUMN not in row or not any(map(str.isdecimal, row)):
        return _as_stored(asked, num_samples)
    types = read_json(folder / METADATA).get("column_data_types")
    layout = WindowLayout(row, types if isinstance(types, dict) else {})
    variables = tuple(_variables(whole, layout))
    chosen = _chosen(variables, layout, options.columns)
    reader = WindowReader(whole.reader, num_samples, layout, variables, chosen)
    source = open_files(asked, reader)
    source.open_first_file()
    return source


def _as_stored(request: OpenRequest, num_samples: dict[str, int]) -> Files:
    """Open files whose rows are not windows."""
    folder = Path(request.paths[0]).parent
    source = open_parquet(request)
    for path, num_rows in zip(num_samples, source.rows_of_files(), strict=True):
        listed = num_samples[path]
        if num_rows < listed or (num_rows and not listed):
            raise SourceError(
                f"{path}: {num_rows} rows, but {folder / METADATA} says {listed} samples, and a sample has at least a row; "
                f"make the folder again"
            )
    return source


def _variables(source: Files, layout: WindowLayout) -> Iterator[str]:
    """Yield the variables of the first window."""
    first = source[0]
    for row in source:
        if not layout.same_window(first, row):
            return
        yield row[_COLUMN]


def _chosen(variables: tuple[str, ...], layout: WindowLayout, columns: Any) -> tuple[str, ...]:
    """Return the variables that are read, in the order of the metadata, which is that of `.pt` chunks."""
    known = [name for name in layout.dtypes if name in variables]
    ordered = (*known, *(name for name in variables if name not in known))
    if columns is None:
        return ordered
    for name in columns:
        if name not in variables:
            raise SourceError(
                f"columns: no column {name!r}{did_you_mean(name, variables)}; there are {', '.join(ordered)}"
            )
    return tuple(name for name in ordered if name in columns)


def _own_name(name: str) -> str:
    """Return the name that a number of each sample has in `.pt` chunks: left_pad_length of leftPadLength."""
    if name.startswith(_CURRICULUM):
        return f"{CURRICULUM}{name.removeprefix(_CURRICULUM)}"
    in_words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return in_words if in_words in PER_SAMPLE else name


def _numpy_type(name: str, text: Any) -> np.dtype[Any]:
    try:
        return np.dtype(str(text).lower())
    except TypeError as error:
        raise SourceError(
            f"{METADATA}: column_data_types says {text!r} for {name!r}, expected a type such as Int64 or Float32"
        ) from error


PARQUET_CHUNKS = Opener(ParquetOptions, open_parquet_chunks)

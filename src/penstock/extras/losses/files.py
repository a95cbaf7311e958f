"""Losses of a run as Arrow files in the cache, next to its status: `runs/RUN/losses/`.

A rank writes three tables: `pieces`, a row for each piece of a sample that was trained; `positions`, sums by step, source and position
bucket; and `tokens`, a row for each target of the few pieces that stand out most.  A table is a list of files of a limited size, of which
only the last is replaced; that of tokens is replaced as a whole.

A *life* is what one rank writes from where its loop began.  A job that is killed and resumes at step s is a new life; what earlier lives
have written from step s on was trained by a model that is gone.  Files are never changed for that: `read_losses` leaves such rows out.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PlanError
from penstock.loader.status import run_folder

_log = logging.getLogger("penstock")

VERSION = 1
_FOLDER = "losses"
_META = b"penstock.losses"
_ROWS_PER_FILE = 1 << 16
_EVERY = 1.0  # seconds between two writes of one table

PIECES = pa.schema(
    [
        ("step", pa.int64()),
        ("source", pa.int32()),
        ("sample", pa.int64()),
        ("start", pa.int32()),  # first token of the piece in its sample
        ("loss", pa.float64()),  # sum over the targets of the piece
        ("targets", pa.int32()),
    ]
)
POSITIONS = pa.schema(
    [
        ("step", pa.int64()),
        ("source", pa.int32()),
        ("bucket", pa.int8()),
        ("loss", pa.float64()),
        ("targets", pa.int64()),
    ]
)
TOKENS = pa.schema(
    [
        ("step", pa.int64()),
        ("source", pa.int32()),
        ("sample", pa.int64()),
        ("token", pa.int32()),  # its place in the sample
        ("loss", pa.float32()),
    ]
)
SCHEMAS = {"pieces": PIECES, "positions": POSITIONS, "tokens": TOKENS}


def losses_folder(root: Path, run_id: str) -> Path:
    """Return where a run's losses are in a cache."""
    return run_folder(root, run_id) / _FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one rank writes from one begin of its loop on."""

    run_id: str
    plan: str  # fingerprint
    rank: int  # data-parallel
    world_size: int
    first_step: int
    begun: float  # seconds since 1970

    @property
    def name(self) -> str:
        return f"{self.plan[:8]}-{self.rank}-{int(self.begun * 1e6)}"


class LossFiles:
    """Writes the tables of one life.  A training never fails because of them: after a failure, it warns once and writes no more."""

    def __init__(self, folder: Path, life: Life) -> None:
        self.life = life
        self._folder = folder
        self._tables = {name: _Table(name, schema) for name, schema in SCHEMAS.items()}
        self._names: list[str] = []
        self._next = 0.0
        self._has_failed = False

    def name_sources(self, names: Sequence[str]) -> None:
        """Say which sources the numbers of the next rows mean."""
        if list(names) != self._names:
            self.write()
            for table in self._tables.values():
                table.close()
            self._names = list(names)

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        """Add rows to a table: columns by name."""
        self._tables[table].add(columns)

    def replace(self, table: str, columns: Mapping[str, Any]) -> None:
        """Replace all rows of a table of this life that has one file."""
        self._tables[table].replace(columns)

    @property
    def is_due(self) -> bool:
        """Whether the last write is a second old, or a file is full."""
        is_full = any(table.num_rows >= _ROWS_PER_FILE for table in self._tables.values())
        return is_full or time.monotonic() >= self._next

    def write(self) -> None:
        """Write what is new."""
        self._next = time.monotonic() + _EVERY
        if self._has_failed:
            return
        meta = {
            **{name: getattr(self.life, name) for name in self.life.__slots__},
            "version": VERSION,
            "written": time.time(),
            "names": self._names,
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for table in self._tables.values():
                table.write(self._folder, self.life.name, meta)
        except OSError as error:
            self._has_failed = True
            _log.warning(
                "%s: the losses of the run cannot be written there, so they are not recorded from here on: %s",
                self._folder,
                error.strerror or error,
            )


class _Table:
    """A table as files of a limited size."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self._name = name
        self._schema = schema
        self._parts: list[Mapping[str, Any]] = []  # of the current file
        self._number = 0  # of the current file
        self._has_news = False
        self.num_rows = 0  # of the current file

    def add(self, columns: Mapping[str, Any]) -> None:
        self._parts.append(columns)
        self.num_rows += len(columns["step"])
        self._has_news = True

    def replace(self, columns: Mapping[str, Any]) -> None:
        self._parts = []
        self.num_rows = 0
        self.add(columns)

    def close(self) -> None:
        """Begin a new file."""
        if self.num_rows:
            self._number += 1
        self._parts = []
        self.num_rows = 0
        self._has_news = False

    def write(self, folder: Path, life: str, meta: dict[str, Any]) -> None:
        """Replace the current file, and begin a new one if it is full."""
        if not self._has_news:
            return
        columns = {
            field.name: np.concatenate([part[field.name] for part in self._parts])
            for field in self._schema
        }
        self._parts = [columns]
        schema = self._schema.with_metadata({_META: json.dumps(meta).encode()})
        batch = pa.record_batch(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )
        path = folder / f"{life}-{self._number}.{self._name}.arrow"
        draft = folder / f".{path.name}.{os.getpid()}.tmp"
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with (
            pa.OSFile(str(draft), "wb") as file,
            pa.ipc.new_file(file, schema, options=options) as out,
        ):
            out.write_batch(batch)
        draft.replace(path)
        self._has_news = False
        if self.num_rows >= _ROWS_PER_FILE:
            self.close()


def read_tables(folder: Path, name: str) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Yield the description and the rows of every file of a table."""
    for path in sorted(folder.glob(f"*.{name}.arrow")):
        try:
            with pa.OSFile(str(path), "rb") as file:
                table = pa.ipc.open_file(file).read_all()
            description = json.loads((table.schema.metadata or {})[_META])
            version = description["version"]
            if version != VERSION or not table.schema.equals(SCHEMAS[name]):
                raise ValueError(f"version {version}, expected {VERSION}")
        except FileNotFoundError:  # removed since the folder was listed
            continue
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise PlanError(f"{path}: not the losses of a run: {error}; remove the file") from error
        yield description, table


@dataclass(frozen=True, slots=True)
class LossRows:
    """The rows of a table over all ranks."""

    names: list[str]  # of sources
    columns: dict[str, Any]


def read_rows(folder: Path, name: str, *, run_id: str, plan: str | None = None) -> LossRows:
    """Return the rows of a table, without those that a resume has taken back.

    plan: the fingerprint of the plan whose losses are wanted; else those of the plan that was written last.
    """
    files = [(meta, table) for meta, table in read_tables(folder, name) if meta["run_id"] == run_id]
    if plan is None and files:
        plan = max(files, key=lambda file: float(file[0]["written"]))[0]["plan"]
    files = [(meta, table) for meta, table in files if meta["plan"] == plan]
    ends = _ends([meta for meta, _ in files])
    names: list[str] = []
    parts = []
    for meta, table in files:
        end = ends[_life_key(meta)]
        if end is not None:
            table = table.filter(pc.less(table["step"], end))
        names += [source for source in meta["names"] if source not in names]
        numbers = np.array([names.index(source) for source in meta["names"]], np.int64)
        columns = {field.name: table[field.name].to_numpy() for field in SCHEMAS[name]}
        columns["source"] = numbers[columns["source"]]
        parts.append(columns)
    empty = {field.name: np.zeros(0, field.type.to_pandas_dtype()) for field in SCHEMAS[name]}
    joined = {
        field: np.concatenate([empty[field], *(part[field] for part in parts)]) for field in empty
    }
    return LossRows(names, joined)


def _life_key(meta: Mapping[str, Any]) -> tuple[int, float]:
    return int(meta["rank"]), float(meta["begun"])


def _ends(metas: Sequence[Mapping[str, Any]]) -> dict[tuple[int, float], int | None]:
    """Return the step before which each life counts; None for a life that no later one has taken over from.

    Ranks of one job overlap in time.  A life that began after another had written its last row is of a later job.  Processes that share
    their rows, as tensor-parallel ones do, write the same: of lives of one data-parallel rank that overlap, the first one counts.
    """
    first_steps: dict[tuple[int, float], int] = {}
    written: dict[tuple[int, float], float] = {}
    for meta in metas:
        key = _life_key(meta)
        first_steps[key] = int(meta["first_step"])
        written[key] = max(written.get(key, 0.0), float(meta["written"]))
    ends: dict[tuple[int, float], int | None] = {}
    for key in first_steps:
        rank, begun = key
        later = [first for other, first in first_steps.items() if other[1] >= written[key]]
        is_copy = any(
            other[0] == rank and other[1] < begun < written[other] for other in first_steps
        )
        ends[key] = 0 if is_copy else min(later, default=None)
    return ends

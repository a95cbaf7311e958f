"""Which records pass a user's function: asked in processes, and remembered in the cache.

A function has no name that says what it does.  So answers are kept only if the user gives a version, which stands for all that the
function does and uses; the key is made of the records' content, the function's name and this version.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cache.checked import Json
from penstock.cache.memo import CONTENT, memo, recall, remember
from penstock.engines import open_engine
from penstock.errors import SourceError
from penstock.sources.base import RowAccess, expect_function
from penstock.sources.views import is_kept, name_of
from penstock.types import BadRow, Bools, Record
from penstock.words import did_you_mean, percent

Keep = Callable[[Record], Any]

_RANGE_BYTES = 8 << 20  # of records that a process is given together
_RANGE_ROWS = 1 << 14
_FORM = (
    "expected module:function, such as my_filters:is_long for the function is_long of my_filters.py"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterCount:
    """How many records a filter has left out, and of how many."""

    name: str
    num_dropped: int
    num_records: int

    def __str__(self) -> str:
        share = percent(self.num_dropped, self.num_records)
        return f"dropped {self.num_dropped:,} of {self.num_records:,} records ({share}) by filter {self.name}"


class RecordFilter:
    """A function over records, its version, and the number of processes that call it."""

    def __init__(
        self, keep: Keep, *, num_proc: int | None = 1, version: str | int | None = None
    ) -> None:
        """num_proc: None for all cores.  version: None to ask the function at each start."""
        expect_function("filter", keep)
        self.name = name_of(keep)
        self.version = _expect_version(version)
        self._keep = keep
        self._engine = open_engine("local", num_proc=num_proc)
        self._identity: list[Json] | None = (
            None if version is None else [self.version, *_identity(keep)]
        )

    def passing(self, source: RowAccess) -> Bools:
        """Return which records pass.  A record that cannot be read passes: it is counted as such."""
        num_rows = len(source)
        if not num_rows:
            return np.zeros(0, np.bool_)
        if self._identity is None:
            return self._ask(source)
        about: list[Json] = [2, self._identity, num_rows, _content(source)]
        text = memo("filter", about, CONTENT, lambda: _as_text(self._ask(source)), source.cache)
        return _from_text(text, num_rows)

    def keeps(self, source: RowAccess, row: int, record: Record) -> bool:
        """Return whether one record passes."""
        return is_kept(source, row, self._keep, record)

    def _ask(self, source: RowAccess) -> Bools:
        borders = source.cuts(num_bytes=_RANGE_BYTES, num_rows=_RANGE_ROWS).tolist()
        stops = dict(pairwise(borders))
        passing = np.zeros(borders[-1], np.bool_)
        for start, text in self._engine.run(_Work(source, self._keep), list(stops.items())):
            stop = stops[start]
            passing[start:stop] = _from_text(text, stop - start)
        return passing


class _Work:
    """Call the function on a range of records; return its first record, and a bit for each record as text."""

    def __init__(self, source: RowAccess, keep: Keep) -> None:
        self._source = source
        self._keep = keep

    def __call__(self, rows: tuple[int, int]) -> tuple[int, str]:
        start, stop = rows
        passing = np.zeros(stop - start, np.bool_)
        for row, record in enumerate(self._source.records(start, stop), start):
            passing[row - start] = isinstance(record, BadRow) or is_kept(
                self._source, row, self._keep, record
            )
        return start, _as_text(passing)

    def describe(self, rows: tuple[int, int], note: Any) -> str:
        return f"records {rows[0]:,} to {rows[1] - 1:,} of {self._source.name}"


def _as_text(passing: Bools) -> str:
    return np.packbits(passing).tobytes().hex()


def _from_text(text: str, num_rows: int) -> Bools:
    bits = np.frombuffer(bytes.fromhex(text), np.uint8)
    return np.unpackbits(bits, count=num_rows).astype(np.bool_)


def _content(source: RowAccess) -> str:
    """Return the digest of all records; files that did not change since are not read again."""
    stamp = source.stamp()
    about: list[Json] = ["filter", len(source)]
    known = recall("content", about, stamp, source.cache)
    if isinstance(known, str):
        return known
    digest = source.digest(0, len(source))
    if source.stamp() == stamp:  # else a file was written to while it was read
        remember("content", about, stamp, digest, source.cache)
    return digest


def _expect_version(version: object) -> str | None:
    if version is None:
        return None
    if isinstance(version, bool) or not isinstance(version, str | int) or version == "":
        raise SourceError(f"filter: version is {version!r}, expected text or a whole number")
    return str(version)


def _identity(keep: Keep) -> list[Json]:
    """Return what names a function; refuse one that holds other values, which may change while name and version stay."""
    if not inspect.isfunction(keep) or keep.__closure__ or keep.__defaults__ or keep.__kwdefaults__:
        raise SourceError(
            f"filter {name_of(keep)} cannot be remembered: it is an object, or a function with default arguments or with values of the "
            f"function around it, which may change unseen; write a plain function of the record, or leave the version out"
        )
    name: list[Json] = [keep.__module__, keep.__qualname__]
    if keep.__module__ != "__main__" and _found_by_name(keep):
        return name
    # Another script, or another line, may have a function of this name: where it is written tells them apart.
    code = keep.__code__
    columns = [column for *_, column, _ in code.co_positions() if column]
    return [*name, code.co_filename, code.co_firstlineno, columns[:1]]


def _found_by_name(keep: Keep) -> bool:
    value: Any = sys.modules.get(keep.__module__)
    for part in keep.__qualname__.split("."):
        value = getattr(value, part, None)
    return value is keep


def read_function(name: str, folder: Path | None = None) -> Keep:
    """Return the function that `module:function` names.  The module is on Python's path, or a file in `folder`.

    Only names are read, no code: a text such as "len(text) > 3" is refused.
    """
    module_name, _, function_name = name.partition(":")
    parts = [*module_name.split("."), function_name]
    if not all(part.isidentifier() for part in parts):
        raise SourceError(f"filter is {name!r}, {_FORM}; conditions are not read, write a function")
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(
            str(folder)
        )  # last, so that it hides no other module; stays for processes that import it, too
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        where = "Python's path" if folder is None else f"Python's path or in {folder}"
        raise SourceError(
            f"filter is {name!r}: module {missing!r} is not on {where}; {_FORM}"
        ) from error
    except Exception as error:
        raise SourceError(
            f"filter is {name!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise SourceError(
            f"filter is {name!r}: {module_name} has no function {function_name!r}{did_you_mean(function_name, known)}"
        )
    kept: Keep = function
    return kept

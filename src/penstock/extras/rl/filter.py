"""Which records may be prompts, by a user's function: called in parallel, and remembered in the cache where its identity is known.

A function has no name that says what it does.  So the answers are kept only if the user gives a version, and for a plain function: the
key is made of the records' content, the function's compiled code and the version, which stands for all that this code uses.
"""

import inspect
import logging
import sys
from collections.abc import Callable
from itertools import pairwise
from types import CodeType
from typing import Any

import numpy as np

from penstock.cache.memo import CONTENT, memo
from penstock.engines import open_engine
from penstock.errors import PlanError
from penstock.sources.base import RowAccess
from penstock.store.digests import SHARD_BYTES, SHARD_ROWS
from penstock.types import Bools, Record

_log = logging.getLogger("penstock")

Keep = Callable[[Record], Any]


class Filter:
    """A function over records, its version, and the processes that call it."""

    def __init__(self, keep: Keep, *, version: str | None, num_proc: int | None) -> None:
        if not callable(keep):
            raise PlanError(
                f"filter is a {type(keep).__name__}, expected a function that takes a record"
            )
        self._keep = keep
        self._engine = open_engine("local", num_proc=num_proc)
        self.name = getattr(keep, "__qualname__", None) or type(keep).__qualname__
        self._identity = None if version is None else [version, _code_of(keep, self.name)]
        if version is None:
            _log.warning(
                "filter %s is called on every record at each start; give it a filter_version to have its answers remembered",
                self.name,
            )

    def kept(self, store: Any, source: RowAccess) -> Bools:
        """Return which rows of a store pass.  A row that cannot be read passes: it is counted as such."""
        borders = source.cuts(num_bytes=SHARD_BYTES, num_rows=SHARD_ROWS).tolist()
        ranges = list(pairwise(borders))

        def ask() -> list[str]:
            answers = dict(self._engine.run(_Work(source, self._keep), ranges))
            return [answers[start] for start, _ in ranges]

        about = [1, self._identity, store.fingerprint, borders]
        stamp = None if self._identity is None else CONTENT
        texts = memo("filter", about, stamp, ask, store.cache)
        bits = [
            _bits(text, stop - start) for text, (start, stop) in zip(texts, ranges, strict=True)
        ]
        return np.concatenate([np.zeros(0, np.bool_), *bits])


class _Work:
    """Call the function on a range of rows; return its first row, and a bit for each row as text."""

    def __init__(self, source: RowAccess, keep: Keep) -> None:
        self._source = source
        self._keep = keep

    def __call__(self, rows: tuple[int, int]) -> tuple[int, str]:
        start, stop = rows
        is_kept = np.zeros(stop - start, np.bool_)
        is_kept[np.asarray(self._source[start:stop].filter(self._keep).rows, np.int64)] = True  # type: ignore[attr-defined]
        return start, np.packbits(is_kept).tobytes().hex()

    def describe(self, rows: tuple[int, int], note: Any) -> str:
        return f"rows {rows[0]:,} to {rows[1] - 1:,} of {self._source.name}"


def _bits(text: str, count: int) -> Bools:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count).astype(np.bool_)


def _code_of(keep: Keep, name: str) -> list[Any]:
    """Return the compiled code of a function as plain values; refuse one that holds other values, which may change unseen."""
    if not inspect.isfunction(keep) or keep.__closure__ or keep.__defaults__ or keep.__kwdefaults__:
        raise PlanError(
            f"filter {name} cannot be remembered: it is an object, or a function with default arguments or with values of the function "
            f"around it, which may change unseen; write a plain function of the record, or leave filter_version out"
        )
    return [list(sys.version_info[:2]), keep.__module__, name, *_plain(keep.__code__)]


def _plain(code: CodeType) -> list[Any]:
    consts = [
        _plain(each) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts
    ]
    return [
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        list(code.co_names),
        list(code.co_varnames),
        code.co_flags,
        consts,
    ]


def _constant(value: Any) -> str:
    """Return a constant as text: of a set in sorted order, which differs from process to process otherwise."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)

"""`source.train_test_split`: by record number, by content, or with each value of a column in both parts."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.cache.checked import Json
from penstock.errors import SourceError
from penstock.fingerprint import digest
from penstock.sources.bad import ProcessLock
from penstock.sources.base import Keys, RowAccess, content_of, expect_seed, random_keys
from penstock.sources.column_views import expect_columns
from penstock.sources.parse import record_bytes
from penstock.sources.views import Selection, View
from penstock.types import BadRow, Bools, Ints, Record


def split(
    source: RowAccess,
    *,
    test_size: float,
    seed: int,
    by: str,
    columns: Sequence[str] | None,
    stratify_by: str | None,
) -> tuple[View, View]:
    """Return (train, test) of a source, as `RowAccess.train_test_split` says."""
    if by not in ("row", "content"):
        raise SourceError(
            f"by is {by!r}, expected 'row' or 'content'; to keep equal values of a column on one side, "
            f"pass by='content', columns=[{str(by)!r}]"
        )
    if columns is not None and by != "content":
        raise SourceError(
            "columns= needs by='content': a record's number does not depend on columns"
        )
    seed = expect_seed("train_test_split", seed)
    if by == "content":
        if stratify_by is not None:
            raise SourceError(
                "stratify_by and by='content' exclude each other: what decides is the content, not a proportion"
            )
        if not _is_share(test_size):
            raise SourceError(
                f"test_size is {test_size!r}, expected a share between 0 and 1: with by='content' each record decides for itself"
            )
        if columns is not None:
            columns = [columns] if isinstance(columns, str) else list(columns)
            expect_columns(source, columns, "train_test_split")
        return _parts(_ByContent(source, test_size, seed, columns))
    num_rows = len(source)
    num_test = _num_test(num_rows, test_size)
    if stratify_by is not None:
        expect_columns(source, [stratify_by], "train_test_split")
        return _parts(_Stratified(source, num_test, seed, stratify_by))
    keys = random_keys(np.arange(num_rows, dtype=np.uint64), ["train_test_split", seed])
    is_test = keys <= np.partition(keys, num_test - 1)[num_test - 1]
    return Selection(source, np.flatnonzero(~is_test)), Selection(source, np.flatnonzero(is_test))


def _is_share(test_size: float) -> bool:
    return isinstance(test_size, float) and 0 < test_size < 1


def _num_test(num_rows: int, test_size: float) -> int:
    is_number = isinstance(test_size, int) and not isinstance(test_size, bool)
    if _is_share(test_size):
        num_test = math.ceil(num_rows * test_size - 1e-9)
    elif is_number:
        num_test = int(test_size)
    else:
        num_test = 0
    if not 0 < num_test < num_rows:
        raise SourceError(
            f"test_size is {test_size!r} of {num_rows} records, expected a share between 0 and 1 or a number of records; "
            f"both parts need at least one record"
        )
    return num_test


class _Split:
    """Which records are the test part: found by one pass over the source, when first needed, for both parts."""

    def __init__(self, source: RowAccess) -> None:
        self.source = source
        self._lock = ProcessLock()
        self._is_test: Bools | None = None

    @property
    def is_test(self) -> Bools:
        if self._is_test is None:
            with self._lock:
                if self._is_test is None:  # another thread may have found it meanwhile
                    self._is_test = self._find()
        return self._is_test

    def _find(self) -> Bools:
        raise NotImplementedError

    def describe(self) -> str:
        raise NotImplementedError


class _SplitPart(Selection):
    """One part of a split whose records are found when they are first needed."""

    def __init__(self, split: _Split, *, test: bool) -> None:
        super().__init__(split.source)
        self._split = split
        self._test = test

    def _find(self) -> Ints:
        is_test = self._split.is_test
        return np.flatnonzero(is_test if self._test else ~is_test)

    def outline(self) -> Json:
        return self._outlined("split", self._split.describe(), self._test)

    def __repr__(self) -> str:
        part = "test" if self._test else "train"
        return f"{self._source!r}.train_test_split({self._split.describe()})[{part}]"


def _parts(found: _Split) -> tuple[View, View]:
    return _SplitPart(found, test=False), _SplitPart(found, test=True)


class _ByContent(_Split):
    """A record is in the test part if its hash is below the share."""

    def __init__(
        self, source: RowAccess, test_size: float, seed: int, columns: list[str] | None
    ) -> None:
        super().__init__(source)
        self._test_size = test_size
        self._seed = seed
        self._columns = columns

    def _find(self) -> Bools:
        hashes = np.empty(len(self.source), dtype=np.uint64)
        for row, record in enumerate(self.source.records(0, len(self.source))):
            hashes[row] = int(digest(self._content(record))[:16], 16)
        keys: Keys = random_keys(hashes, ["train_test_split", "content", self._seed])
        found: npt.NDArray[np.bool_] = (keys >> np.uint64(11)) / 2.0**53 < self._test_size
        return found

    def _content(self, record: Record | BadRow) -> bytes:
        if self._columns is None or isinstance(record, BadRow):
            return content_of(record)
        return record_bytes({name: record.get(name) for name in self._columns})

    def describe(self) -> str:
        columns = "" if self._columns is None else f", columns={self._columns}"
        return f"test_size={self._test_size}, seed={self._seed}, by='content'{columns}"


class _Stratified(_Split):
    """Each value of a column in both parts, in the same proportion."""

    def __init__(self, source: RowAccess, num_test: int, seed: int, column: str) -> None:
        super().__init__(source)
        self._num_test = num_test
        self._seed = seed
        self._column = column

    def _find(self) -> Bools:
        numbers: dict[bytes, int] = {}  # value → number of its stratum
        strata = np.empty(len(self.source), dtype=np.int64)
        for row, record in enumerate(self.source.records(0, len(self.source))):
            value = None if isinstance(record, BadRow) else record.get(self._column)
            strata[row] = numbers.setdefault(record_bytes(value), len(numbers))
        sizes = np.bincount(strata, minlength=len(numbers))
        self._expect_enough(list(numbers), sizes)
        keys = random_keys(
            np.arange(len(strata), dtype=np.uint64), ["train_test_split", self._seed]
        )
        is_test = np.zeros(len(strata), dtype=np.bool_)
        for stratum, num_test in enumerate(_shares(sizes, self._num_test).tolist()):
            rows = np.flatnonzero(strata == stratum)
            is_test[rows[np.argsort(keys[rows])[:num_test]]] = True
        return is_test

    def _expect_enough(self, values: list[bytes], sizes: Ints) -> None:
        if (sizes < 2).any():
            value = values[int(sizes.argmin())].decode()
            raise SourceError(
                f"stratify_by={self._column!r}: the value {value} is in one record only, expected at least two, one for each part; "
                f"leave such records out with filter, or do not stratify"
            )
        num_train = len(self.source) - self._num_test
        if min(self._num_test, num_train) < len(values):
            raise SourceError(
                f"stratify_by={self._column!r}: {len(values)} values, and {self._num_test} test records next to {num_train} train records; "
                f"each part needs a record of each value, so choose another test_size"
            )

    def describe(self) -> str:
        return f"test_size={self._num_test}, seed={self._seed}, stratify_by={self._column!r}"


def _shares(sizes: Ints, num_test: int) -> Ints:
    """Deal test records to strata in proportion to their sizes: whole records first, then those with the largest remainders."""
    # whole numbers, so that all machines agree; each stratum gives at least one row and keeps at least one
    total = int(sizes.sum())
    exact = sizes * num_test
    shares: Ints = (exact // total).clip(1, sizes - 1)
    remainders = exact - shares * total
    while shares.sum() != num_test:
        short = shares.sum() < num_test
        may_change = shares < sizes - 1 if short else shares > 1
        order = np.where(may_change, remainders if short else -remainders, np.iinfo(np.int64).min)
        stratum = int(order.argmax())
        shares[stratum] += 1 if short else -1
        remainders[stratum] += -total if short else total
    return shares

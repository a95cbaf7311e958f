"""Rows of a source in ranges, one for each shard, and their digests, kept as long as the files of the source stay as they are.

The digest of a range is published as soon as it is known, so that other processes on the same cache, and a run after one that was
killed, do not read its rows again.  Those of single ranges are kept for a day.

A source of files has a stamp: paths, sizes, inodes and change times, and how the files are read.  An equal stamp means that the
files were not written to, so the digests hold.  Keys are always made of digests: a stamp only saves the reading.
"""

import contextlib
import json
from collections.abc import Sequence
from itertools import pairwise

from penstock.cache import Cache
from penstock.cache.claims import RESULTS
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint
from penstock.types import Column, Source, rule_of

SHARD_BYTES = 8 << 20
SHARD_ROWS = 1 << 16

_VERSION = 2  # raise when a source digests the same rows in another way


def stamp(source: Source) -> str | None:
    """The stamp of a source; None where only reading shows whether it is the same."""
    method = getattr(source, "stamp", None)
    found = None if method is None else method()
    return None if found is None else fingerprint(found)


def rows_per_shard(columns: Sequence[Column]) -> int:
    """How many rows a shard may have, by the columns of its samples."""
    limits = [rule_of(column).shard_rows for column in columns]
    return min([SHARD_ROWS, *(limit for limit in limits if limit is not None)])


def recall_digests(name: str, count: int, cache: Cache) -> list[str] | None:
    """The digests that a file of the cache holds; None if there is none, or it is damaged."""
    with contextlib.suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
        value = json.loads(cache.read(name))
        cache.hold(name)
        digests = [str(digest) for digest in value["digests"]]
        if value["check"] == fingerprint(digests) and len(digests) == count:
            return digests
    return None


def remember_digests(name: str, digests: list[str], cache: Cache) -> None:
    text = json.dumps({"digests": digests, "check": fingerprint(digests)}).encode()
    with contextlib.suppress(StoreError):  # without them the next run is slower
        cache.publish(name, lambda file: file.write(text), replace=True)


class RowRanges:
    """A source cut into the ranges of rows that become shards.  Without a cache, no digests are kept."""

    def __init__(
        self,
        source: Source,
        cache: Cache | None,
        *,
        num_bytes: int = SHARD_BYTES,
        num_rows: int = SHARD_ROWS,
    ) -> None:
        self.borders = source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        self.pairs: list[tuple[int, int]] = list(
            pairwise(self.borders.tolist())
        )  # first row and end of each range
        self._source = source
        self.cache = cache
        self._stamp = stamp(source)  # before a byte is read
        self._name = self._named(self.borders.tolist())

    def _named(self, borders: list[int], folder: str = "digests") -> str:
        key = fingerprint([_VERSION, self._stamp, borders])
        return f"{folder}/{key[:2]}/{key}.json"

    def name_of(self, shard: int) -> str | None:
        """The name under which the digest of one range is kept, before those of all ranges are known; None without a stamp."""
        if self.cache is None or self._stamp is None:
            return None
        return self._named(list(self.pairs[shard]), f"{RESULTS}/rows")

    def recall(self) -> list[str] | None:
        """The digests of the ranges, as they were when the files had the stamp of now."""
        if self.cache is None or self._stamp is None:
            return None
        return recall_digests(self._name, len(self.pairs), self.cache) if self.pairs else []

    def remember(self, digests: list[str]) -> list[str]:
        """Keep and return digests, if the source still has its stamp.  Without them the next run is slower."""
        if (
            self.cache is not None
            and self._stamp is not None
            and digests
            and stamp(self._source) == self._stamp
        ):
            remember_digests(self._name, digests, self.cache)
        return digests

    def sizes(self) -> list[int]:
        """About how many bytes the records of each range take, by the positions of rows; empty where they are not known."""
        known = [self._size(start, stop) for start, stop in self.pairs]
        usual = sorted(known)[len(known) // 2] if known else 0
        return [size or usual for size in known] if any(known) else []

    def _size(self, start: int, stop: int) -> int:
        first = self._source.locate(start)
        last = self._source.locate(stop - 1)
        size = max(0, last.byte - first.byte) if last.file == first.file else 0
        return (
            size * (stop - start) // max(1, stop - start - 1)
        )  # the last row is as long as the others, on average

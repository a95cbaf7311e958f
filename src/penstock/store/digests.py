"""Records of a source in ranges, one for each shard, and their digests, kept as long as the files of the source stay as they are.

The digest of a range is remembered as soon as it is known, so that other processes on the same cache, and a run after one that was
killed, do not read its records again.  Those of single ranges are kept for a day.

A source of files has a stamp: paths, sizes, inodes and change times, and how the files are read.  An equal stamp means that the
files were not written to, so the digests hold.  Keys are always made of digests: a stamp only saves the reading.
"""

from collections.abc import Sequence
from itertools import pairwise

from penstock.cache import Cache
from penstock.cache.checked import Json
from penstock.cache.memo import forget_old, recall, remember
from penstock.fingerprint import fingerprint
from penstock.types import Column, Source, rule_of

SHARD_BYTES = 8 << 20
SHARD_ROWS = 1 << 16

_VERSION = 2  # raise when a source digests the same rows in another way
_ALL = "digests"
_ONE = "ranges"
_ONE_SECONDS = 86400.0  # after which the digest of one range is forgotten


def stamp(source: Source) -> str | None:
    """The stamp of a source; None where only reading shows whether it is the same."""
    method = getattr(source, "stamp", None)
    state = None if method is None else method()
    return None if state is None else fingerprint(state)


def rows_per_shard(columns: Sequence[Column]) -> int:
    """How many records a shard may have, by the columns of its samples."""
    limits = [rule_of(column).shard_rows for column in columns]
    return min([SHARD_ROWS, *(limit for limit in limits if limit is not None)])


def recall_digest(start: int, stop: int, state: str | None, cache: Cache) -> str | None:
    """The digest of records start..stop of a source with this stamp, if a process has read them lately."""
    digest = recall(_ONE, [_VERSION, start, stop], state, cache)
    return digest if isinstance(digest, str) else None


def remember_digest(start: int, stop: int, state: str | None, digest: str, cache: Cache) -> None:
    remember(_ONE, [_VERSION, start, stop], state, digest, cache)


def forget_digests(cache: Cache) -> None:
    """Remove the digests of single ranges that no process needs any more."""
    forget_old(_ONE, _ONE_SECONDS, cache)


class RowRanges:
    """A source cut into the ranges of records that become shards.  Without a cache, no digests are kept."""

    def __init__(
        self,
        source: Source,
        cache: Cache | None,
        *,
        num_bytes: int = SHARD_BYTES,
        num_rows: int = SHARD_ROWS,
    ) -> None:
        self.borders = source.cuts(num_bytes=num_bytes, num_rows=num_rows)
        # first row and end of each range
        self.pairs: list[tuple[int, int]] = list(pairwise(self.borders.tolist()))
        self.cache = cache
        self.stamp = None if cache is None else stamp(source)  # before a byte is read
        self._source = source

    def recall(self) -> list[str] | None:
        """The digests of the ranges, as they were when the files had the stamp of now."""
        if self.cache is None or self.stamp is None:
            return None
        if not self.pairs:
            return []
        digests = recall(_ALL, self._question, self.stamp, self.cache)
        if isinstance(digests, list) and len(digests) == len(self.pairs):
            return [str(digest) for digest in digests]
        return None

    def remember(self, digests: list[str]) -> list[str]:
        """Keep and return digests, if the source still has its stamp.  Without them the next run is slower."""
        if self.cache is None or self.stamp is None or not digests:
            return digests
        if stamp(self._source) == self.stamp:
            remember(_ALL, self._question, self.stamp, digests, self.cache)
        return digests

    @property
    def _question(self) -> list[Json]:
        return [_VERSION, self.borders.tolist()]

    def sizes(self) -> list[int]:
        """About how many bytes the records of each range take, by the positions of records; empty where they are not known."""
        sizes = [self._size(start, stop) for start, stop in self.pairs]
        if not any(sizes):
            return []
        usual = sorted(sizes)[len(sizes) // 2]
        return [size or usual for size in sizes]

    def _size(self, start: int, stop: int) -> int:
        first = self._source.locate(start)
        last = self._source.locate(stop - 1)
        if last.file != first.file:
            return 0
        size = max(0, last.byte - first.byte)
        # the last row is as long as the others, on average
        return size * (stop - start) // max(1, stop - start - 1)

"""Is what lies on disk what was written?  Every byte of a store is read, and nothing is mapped: a bad disk is an error, not a signal."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import digest
from penstock.store.manifest import (
    Manifest,
    ShardEntry,
    check_lengths,
    lengths_bytes,
    lengths_name,
    manifest_name,
    read,
    to_text,
)
from penstock.store.prune import survey
from penstock.store.reader import parse_shard
from penstock.store.schema import shard_name
from penstock.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One file that is not what it should be."""

    file: str  # its name in the cache
    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was read of a store, and what was wrong with it."""

    store: str
    num_files: int
    num_bytes: int
    problems: tuple[Problem, ...]

    @property
    def is_whole(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        state = "whole" if self.is_whole else f"{len(self.problems)} of {self.num_files} files are damaged or missing"
        return f"{self.store[:8]}: {state} ({self.num_bytes:,} bytes read)"


def verify(store: Store | str, cache: Cache | None = None) -> Report:
    """Read a whole store, given as such or by its fingerprint, and hold it to its digests."""
    name = store.fingerprint if isinstance(store, Store) else store
    if cache is None:
        cache = store.cache if isinstance(store, Store) else Cache()
    check = _Check(cache)
    manifest = check.manifest(name)
    if manifest is not None:
        lengths = check.lengths(manifest)
        for entry, start in zip(manifest.shards, _starts(manifest), strict=True):
            expected = None if lengths is None else lengths[start : start + entry.counts.rows]
            check.shard(entry, manifest.vocab_size, expected)
    return check.report(name)


def verify_all(cache: Cache) -> Iterator[Report]:
    """Every store of a cache, one after another."""
    for store in sorted(survey(cache).manifests):
        yield verify(store, cache)


class _Check:
    """Collects what is wrong, and goes on."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._problems: list[Problem] = []
        self._read: dict[str, int] = {}  # file → bytes
        self._lengths_of: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]] | None] = {}  # key → of its samples

    def report(self, store: str) -> Report:
        return Report(
            store=store,
            num_files=len(self._read),
            num_bytes=sum(self._read.values()),
            problems=tuple(self._problems),
        )

    def manifest(self, store: str) -> Manifest | None:
        name = manifest_name(store)
        try:
            data = self._bytes(name)
            manifest = read(store, self._cache)
            if data != to_text(manifest):
                raise StoreError(f"{self._cache.path(name)}: not as it was written; pass refresh=True to make it again")
        except StoreError as error:
            self._blame(name, error)
            return None
        return manifest

    def lengths(self, manifest: Manifest) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        name = lengths_name(manifest.name)
        path = self._cache.path(name)
        try:
            data = self._bytes(name)
            expected = lengths_bytes(manifest.counts.rows)
            if len(data) != expected:
                raise StoreError(f"{path}: {len(data)} bytes, expected {expected}; remove it, it will be made again")
            check_lengths(memoryview(data), path)
        except StoreError as error:
            self._blame(name, error)
            return None
        return np.frombuffer(data, dtype="<i4", count=manifest.counts.rows)

    def shard(
        self, entry: ShardEntry, vocab_size: int, expected: np.ndarray[tuple[int], np.dtype[np.int32]] | None
    ) -> None:
        name = shard_name(entry.key)
        if entry.key not in self._lengths_of:  # one shard may stand in a store twice
            self._lengths_of[entry.key] = None
            try:
                self._lengths_of[entry.key] = self._shard(entry, vocab_size)
            except StoreError as error:
                self._blame(name, error)
        found = self._lengths_of[entry.key]
        if found is not None and expected is not None and not np.array_equal(found, expected):
            path = self._cache.path(name)
            self._blame(name, StoreError(f"{path}: samples of other lengths than the store's file of lengths says"))

    def _shard(self, entry: ShardEntry, vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        name = shard_name(entry.key)
        path = self._cache.path(name)
        data = self._bytes(name)
        if len(data) != entry.num_bytes:
            raise StoreError(
                f"{path}: {len(data)} bytes, expected {entry.num_bytes}; pass refresh=True to make it again"
            )
        if (found := digest(data)) != entry.digest:
            raise StoreError(f"{path}: digest {found}, expected {entry.digest}; pass refresh=True to make it again")
        shard = parse_shard(
            pa.BufferReader(data), path, key=entry.key, num_rows=entry.counts.rows, vocab_size=vocab_size, verify=True
        )
        if shard.counts != entry.counts:
            raise StoreError(
                f"{path}: counts {shard.counts}, expected {entry.counts}; pass refresh=True to make it again"
            )
        return np.diff(shard.offsets).astype(np.int64)

    def _bytes(self, name: str) -> bytes:
        self._read[name] = 0
        data = self._cache.read(name)
        self._read[name] = len(data)
        return data

    def _blame(self, name: str, error: StoreError) -> None:
        self._problems.append(Problem(file=name, reason=str(error)))


def _starts(manifest: Manifest) -> list[int]:
    """The first row of each shard."""
    return list(accumulate((entry.counts.rows for entry in manifest.shards), initial=0))[:-1]

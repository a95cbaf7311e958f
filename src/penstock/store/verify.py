"""Check that a store on disk is what was written.  Every byte is read and nothing is mapped: a bad disk is an error, not a signal."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from penstock.cache import Cache, open_cache
from penstock.errors import StoreError
from penstock.store.inventory import survey
from penstock.store.manifest import (
    Lengths,
    Manifest,
    lengths_name,
    manifest_name,
    read,
    read_lengths,
)
from penstock.store.shards import Schema, ShardEntry, read_shard, shard_name
from penstock.store.store import Store
from penstock.types import longest_sequences, row_sequences

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One file with wrong content."""

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
        state = (
            "whole"
            if self.is_whole
            else f"{len(self.problems)} of {self.num_files} files are damaged or missing"
        )
        return f"{self.store[:8]}: {state} ({self.num_bytes:,} bytes read)"


def verify(store: Store | str, cache: Cache | None = None) -> Report:
    """Read a whole store, given as a Store or by its fingerprint, and check it against its digests."""
    if isinstance(store, Store):
        return verify(store.fingerprint, cache or store.cache)
    check = _Check((cache or open_cache()).published())
    if (manifest := check.attempt(manifest_name(store), read, store)) is not None:
        check.check_shards(manifest)
    num_bytes = sum(check.sizes.values())
    problems = tuple(check.problems)
    return Report(store=store, num_files=len(check.sizes), num_bytes=num_bytes, problems=problems)


def verify_all(cache: Cache) -> Iterator[Report]:
    """Every store of a cache, one after another."""
    for store in sorted(survey(cache).manifests):
        yield verify(store, cache)


class _Check:
    """Reads files, collects problems, and continues."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.problems: list[Problem] = []
        self.sizes: dict[str, int] = {}  # bytes read of each file

    def attempt(self, name: str, read: Callable[..., _Found], *arguments: Any) -> _Found | None:
        """Read a file by `read(*arguments, cache)`; a StoreError becomes a problem of this file."""
        try:
            self.sizes[name] = self._cache.size(name) or 0
            return read(*arguments, self._cache)
        except StoreError as error:
            self.problems.append(Problem(file=name, reason=str(error)))
            return None

    def check_shards(self, manifest: Manifest) -> None:
        lengths = self.attempt(lengths_name(manifest.name), read_lengths, manifest.name)
        starts = accumulate((entry.counts.rows for entry in manifest.shards), initial=0)
        # by key: a store may contain one shard twice
        lengths_of_shards: dict[str, Lengths | None] = {}
        for entry, start in zip(manifest.shards, starts, strict=False):
            name = shard_name(entry.key)
            if entry.key not in lengths_of_shards:
                read = self.attempt(name, _shard_lengths, entry, manifest.schema)
                lengths_of_shards[entry.key] = read
            lengths_of_shard = lengths_of_shards[entry.key]
            if lengths_of_shard is None or lengths is None:
                continue
            listed = lengths[start : start + entry.counts.rows]
            if manifest.row_sequences > 1:
                behind = manifest.counts.rows + start
                listed = np.concatenate((listed, lengths[behind : behind + entry.counts.rows]))
            if np.array_equal(lengths_of_shard, listed):
                continue
            reason = f"{self._cache.path(name)}: samples of other lengths than the store's file of lengths says"
            self.problems.append(Problem(file=name, reason=reason))


def _shard_lengths(entry: ShardEntry, schema: Schema, cache: Cache) -> Lengths:
    """The lengths of a shard's samples, and of their longest sequences if they have several, after every byte of it was checked."""
    shard, entry_of_file = read_shard(entry.key, cache, schema, num_rows=entry.counts.rows)
    if entry_of_file.digest != entry.digest:
        path = cache.path(shard_name(entry.key))
        raise StoreError(
            f"{path}: digest {entry_of_file.digest}, expected {entry.digest}; pass refresh=True to make it again"
        )
    lengths = np.diff(shard.offsets)
    if row_sequences(schema.columns) == 1:
        return lengths
    return np.concatenate((lengths, longest_sequences(shard.columns, shard.offsets)))

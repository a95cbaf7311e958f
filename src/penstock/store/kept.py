"""A store without its source: found in the cache by its fingerprint, or known to be missing.

A run whose mixture changed needs the stores of earlier mixtures only to explain earlier steps.
"""

from typing import Any, NoReturn

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.plan.order import sizes_of_rows
from penstock.store.inventory import load_origin
from penstock.store.manifest import load
from penstock.store.store import Sample, Store
from penstock.types import Column, Where


class _Rows:
    """Records whose source is not open: only their numbers are known."""

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self._key = key

    def locate(self, row: int) -> Where:
        """Return the record of the store; the file is not known any more."""
        return Where(file=f"{self.name} (store {self._key[:8]})", line=row + 1)


def kept_store(name: str, key: str, cache: Cache) -> Store | None:
    """Return the store with this fingerprint, if the cache has all of it."""
    manifest = load(key, cache)
    if manifest is None or not manifest.is_whole(cache):
        return None
    origin = load_origin(key, cache)
    source: Any = _Rows(name if origin is None else origin.name, key)
    sizes = np.array([entry.counts.rows for entry in manifest.shards], np.int64)
    keys = [entry.key for entry in manifest.shards]
    template: Any = None
    return Store(
        source=source,
        template=template,
        cache=cache,
        keys=keys,
        shard_sizes=sizes,
        manifest=manifest,
    )


class MissingStore(Store):
    """A store that was removed from the mixture and is not in the cache any more; every use of its samples is an error that names it."""

    columns: tuple[Column, ...] = ()
    vocab_size = 0
    bytes_per_record = 1

    def __init__(self, name: str, key: str, num_samples: int, cache: Cache) -> None:
        manifest: Any = ()
        source: Any = _Rows(name, key)
        template: Any = None
        sizes = np.array([num_samples], np.int64)
        super().__init__(
            source=source,
            template=template,
            cache=cache,
            keys=[],
            shard_sizes=sizes,
            manifest=manifest,
        )
        self.fingerprint = key

    def __repr__(self) -> str:
        return f"MissingStore({self.name!r}, not in the cache, {self.fingerprint[:8]})"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StoreError(
            f"the store of source {self.name!r}, {self.fingerprint[:8]}, is not in {self.cache.root}: it was removed from the mixture, "
            f"and steps before that can be explained only with it; prepare it again in this cache"
        )

    lengths_of = longest_of = has_target = tokens = wait = __getitem__ = _refuse


def not_grown(old: Store, new: Store) -> str:
    """Say why a store does not begin with all samples of another; empty if it does."""
    if len(new) < len(old):
        return f"{len(new):,} samples instead of {len(old):,}"
    if not np.array_equal(sizes_of_rows(new.shard_sizes, 0, len(old)), old.shard_sizes):
        return "its shards begin at other records"
    for shard, (old_key, new_key) in enumerate(zip(old._keys, new._keys, strict=False)):
        if old_key == new_key:
            continue
        size = int(old.shard_sizes[shard])
        if old.tokens(shard).batch.equals(new.tokens(shard).batch.slice(0, size)):
            continue
        # to name the row; tokens of another width may be the same
        first = int(old.shard_starts[shard])
        for row in range(first, first + size):
            if not _is_same(old[row], new[row]):
                return f"sample {row:,} differs"
    return ""


def _is_same(one: Sample, other: Sample) -> bool:
    if one.columns.keys() != other.columns.keys():
        return False
    pairs = [(one.input_ids, other.input_ids), (one.loss_mask, other.loss_mask)]
    pairs += [(one.columns[name], other.columns[name]) for name in one.columns]
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

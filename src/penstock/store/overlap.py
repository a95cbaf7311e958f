"""Find samples of an evaluation set that are also in the training set, token by token.

A sample is known by a hash of its tokens, 8 bytes.  The hashes of a shard are computed at once: with r^j as the weight of its j-th token,
the hash of a sample is a difference of two running sums, divided by r^start so that its place in the shard does not matter.  All of it is
arithmetic modulo 2^64, where an odd r can be divided by.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from penstock.store.shards import ShardTokens
from penstock.store.store import Store
from penstock.types import rule_of
from penstock.words import percent, plural, spread

_log = logging.getLogger("penstock")

Hashes = npt.NDArray[np.uint64]

_MOST_TOKENS = 1 << 27  # of a store that are compared, from all over it; about two seconds
_MOST_EXAMPLES = 3
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE = pow(_BASE, -1, 1 << 64)
_compared: set[tuple[str, str]] = (
    set()
)  # pairs of stores of this process, so that none is said twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How many samples of an evaluation set are also in a training set."""

    evaluated: str
    trained: str
    count: int
    looked: int  # samples of the evaluation set that were compared
    looked_trained: int  # samples of the training set that they were compared with
    is_whole: bool  # all samples of both were compared
    examples: tuple[tuple[str, str], ...]  # places in both: file:line

    def __str__(self) -> str:
        places = ", ".join(f"{one} = {other}" for one, other in self.examples)
        how = "all samples" if self.is_whole else "a part of the samples"
        return (
            f"eval set {self.evaluated!r}: {self.count:,} of {plural(self.looked, 'sample')} "
            f"({percent(self.count, self.looked)}) are also in the training set {self.trained!r}, with the same tokens "
            f"({how} compared: {self.looked:,} with {self.looked_trained:,}); such as {places}"
        )


def token_hashes(tokens: ShardTokens) -> Hashes:
    """Return a hash of the tokens of each sample of a shard; that of a record without a sample is 0."""
    offsets = tokens.offsets.astype(np.int64)
    count = int(offsets[-1]) if offsets.size else 0
    mixed = tokens.input_ids[:count].astype(np.uint64)
    mixed += np.uint64(1)  # a token 0 counts, too
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed *= _powers(_BASE, count)
    sums = np.zeros(count + 1, np.uint64)
    np.cumsum(mixed, out=sums[1:])
    hashes = sums[offsets[1:]] - sums[offsets[:-1]]
    hashes *= _powers(_INVERSE, count + 1)[offsets[:-1]]
    lengths = np.diff(offsets).astype(np.uint64)
    hashes ^= lengths * np.uint64(_BASE)
    hashes[lengths == 0] = 0
    return hashes


def _powers(base: int, count: int) -> Hashes:
    """Return base^0, base^1, … modulo 2^64."""
    factors = np.full(count, base, np.uint64)
    if count:
        factors[0] = 1
    return np.multiply.accumulate(factors)


def can_compare(store: object) -> TypeGuard[Store]:
    """Return whether the tokens of a store say all about its samples, and are on this machine."""
    return (
        isinstance(store, Store)
        and store.manifest is not None
        and not store.cache.is_remote
        and not any(rule_of(column).is_content for column in store.columns)
    )


def _shards_to_read(store: Store) -> list[int]:
    """Return the shards that are compared: all, or evenly spread ones."""
    tokens = max(store.counts.tokens, 1)
    most = max(1, store.num_shards * _MOST_TOKENS // tokens)
    return spread(store.num_shards, most)


def _hashed(store: Store) -> Iterable[tuple[int, Hashes]]:
    """Yield the first sample of each shard that is compared, and the hashes of its samples."""
    for shard in _shards_to_read(store):
        yield int(store.shard_starts[shard]), token_hashes(store.tokens(shard))


def find_overlap(
    evaluated: Store, trained: Store, *, name: str | None = None, train_name: str | None = None
) -> Overlap | None:
    """Find the samples of an evaluation set that a training set has, too; None if there are none."""
    hash_parts = []
    row_parts = []
    for start, hashes in _hashed(evaluated):
        kept = np.flatnonzero(hashes)
        hash_parts.append(hashes[kept])
        row_parts.append(kept + start)
    hashes = np.concatenate([np.zeros(0, np.uint64), *hash_parts])
    rows = np.concatenate([np.zeros(0, np.int64), *row_parts])
    if hashes.size == 0:
        return None
    # each content once: a sample that repeats a thousand times on both sides is one comparison, not a million
    contents, content_of_row = np.unique(hashes, return_inverse=True)
    first_trained = np.full(contents.size, -1, np.int64)
    looked_trained = 0
    for start, others in _hashed(trained):
        present = np.flatnonzero(others)
        looked_trained += present.size
        places = np.minimum(np.searchsorted(contents, others[present]), contents.size - 1)
        is_same = contents[places] == others[present]
        shared, first = np.unique(places[is_same], return_index=True)
        is_new = first_trained[shared] < 0
        first_trained[shared[is_new]] = start + present[is_same][first[is_new]]
    first_trained = first_trained[content_of_row]
    is_found = first_trained >= 0
    if not is_found.any():
        return None
    chosen = np.flatnonzero(is_found)
    chosen = chosen[np.argsort(rows[chosen])][:_MOST_EXAMPLES]
    examples = tuple(
        (
            str(evaluated.source.locate(int(rows[place]))),
            str(trained.source.locate(int(first_trained[place]))),
        )
        for place in chosen.tolist()
    )
    return Overlap(
        evaluated=name or evaluated.name,
        trained=train_name or trained.name,
        count=int(np.count_nonzero(is_found)),
        looked=hashes.size,
        looked_trained=looked_trained,
        is_whole=all(
            len(_shards_to_read(each)) == each.num_shards for each in (evaluated, trained)
        ),
        examples=examples,
    )


def find_overlaps(evaluated: Mapping[str, object], trained: Mapping[str, object]) -> list[Overlap]:
    """Compare each evaluation set with each training set that can be compared."""
    overlaps = []
    for name, one in evaluated.items():
        for train_name, other in trained.items():
            if can_compare(one) and can_compare(other):
                found = find_overlap(one, other, name=name, train_name=train_name)
                overlaps += [found] if found is not None else []
    return overlaps


def named(stores: Iterable[object]) -> dict[str, object]:
    """Return stores by their names; a name that comes again gets a number."""
    by_name: dict[str, object] = {}
    for store in stores:
        name = str(getattr(store, "name", "data"))
        while name in by_name:
            name = f"{name} ({len(by_name) + 1})"
        by_name[name] = store
    return by_name


def warn_of_overlap(evaluated: Mapping[str, object], trained: Mapping[str, object]) -> None:
    """Log a warning for each evaluation set that shares samples with the training data; each pair once in a process."""
    for name, one in evaluated.items():
        for train_name, other in trained.items():
            if not can_compare(one) or not can_compare(other):
                continue
            pair = (one.fingerprint, other.fingerprint)
            if pair in _compared:
                continue
            _compared.add(pair)
            for overlap in find_overlaps({name: one}, {train_name: other}):
                _log.warning("%s; a loss on them says nothing about new data", overlap)

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
from penstock.types import Ids, Ints, rule_of
from penstock.words import ProgressLog, log_stage, percent, plural, spread

_log = logging.getLogger("penstock")

Hashes = npt.NDArray[np.uint64]

_TOKENS_PER_SECOND = 30_000_000  # that a slow core compares
_MOST_TOKENS = 1 << 27  # of a store that are compared, from all over it; about two seconds
_MOST_EXAMPLES = 3
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE = pow(_BASE, -1, 1 << 64)
_MIXING_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # of splitmix64
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
    starts = offsets[:-1]
    stops = offsets[1:]
    num_tokens = int(offsets[-1]) if offsets.size else 0

    weighted = _mixed(tokens.input_ids[:num_tokens])
    weighted *= _powers(_BASE, num_tokens)
    sums = np.zeros(num_tokens + 1, np.uint64)  # sums[i] is the sum of the tokens before token i
    np.cumsum(weighted, out=sums[1:])
    hashes = sums[stops] - sums[starts]
    # The first weight of a sample is r^start: divide by it, so that its place does not matter.
    hashes *= _powers(_INVERSE, num_tokens + 1)[starts]

    lengths = (stops - starts).astype(np.uint64)
    hashes ^= lengths * np.uint64(_BASE)
    hashes[lengths == 0] = 0
    return hashes


def _mixed(ids: Ids) -> Hashes:
    """Return a number of 64 bits for each token id: ids are small, and their plain sums would often be equal."""
    mixed = ids.astype(np.uint64)
    mixed += np.uint64(1)  # 0 would stay 0, so a token 0 would not count
    for shift, factor in _MIXING_STEPS:
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed


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


@dataclass(frozen=True, slots=True)
class _HashedSamples:
    """The samples of a store that are compared, one entry each; records without a sample are left out."""

    rows: Ints
    hashes: Hashes


def _hash_samples(store: Store) -> _HashedSamples:
    """Hash the samples of the shards that are compared."""
    row_parts = [np.zeros(0, np.int64)]
    hash_parts = [np.zeros(0, np.uint64)]
    for start, hashes in _hashed(store):
        samples = np.flatnonzero(hashes)
        row_parts.append(start + samples)
        hash_parts.append(hashes[samples])
    return _HashedSamples(rows=np.concatenate(row_parts), hashes=np.concatenate(hash_parts))


def _find_first_rows(store: Store, contents: Hashes) -> tuple[Ints, int]:
    """Return the first record of a store with each content, -1 if it has none; and how many samples were compared.

    contents: hashes, ascending and each once.
    """
    first_rows = np.full(contents.size, -1, np.int64)
    num_compared = 0
    num_samples = sum(np.diff(store.shard_starts)[_shards_to_read(store)].tolist())
    what = f"comparing samples of {store.name} with an evaluation set"
    log_stage(what, seconds=store.counts.tokens / _TOKENS_PER_SECOND)
    progress = ProgressLog(what, num_samples)
    for start, hashes in _hashed(store):
        progress(num_compared)
        samples = np.flatnonzero(hashes)
        num_compared += samples.size
        sample_hashes = hashes[samples]
        candidates = np.searchsorted(contents, sample_hashes)
        candidates = np.minimum(candidates, contents.size - 1)
        is_same = contents[candidates] == sample_hashes
        found_contents, first_places = np.unique(candidates[is_same], return_index=True)
        found_rows = start + samples[is_same][first_places]
        is_new = first_rows[found_contents] < 0
        first_rows[found_contents[is_new]] = found_rows[is_new]
    return first_rows, num_compared


def _examples(
    evaluated: Store, trained: Store, rows: Ints, trained_rows: Ints
) -> tuple[tuple[str, str], ...]:
    """Return the places in both stores of the first shared samples."""
    examples = []
    for place in np.argsort(rows)[:_MOST_EXAMPLES].tolist():
        evaluated_place = evaluated.source.locate(int(rows[place]))
        trained_place = trained.source.locate(int(trained_rows[place]))
        examples.append((str(evaluated_place), str(trained_place)))
    return tuple(examples)


def find_overlap(
    evaluated: Store, trained: Store, *, name: str | None = None, train_name: str | None = None
) -> Overlap | None:
    """Find the samples of an evaluation set that a training set has, too; None if there are none."""
    samples = _hash_samples(evaluated)
    if samples.hashes.size == 0:
        return None
    # each content once: a sample that repeats a thousand times on both sides is one comparison, not a million
    contents, content_of_sample = np.unique(samples.hashes, return_inverse=True)
    first_rows, num_trained = _find_first_rows(trained, contents)
    trained_rows = first_rows[content_of_sample]
    is_shared = trained_rows >= 0
    if not is_shared.any():
        return None
    is_whole = all(len(_shards_to_read(each)) == each.num_shards for each in (evaluated, trained))
    return Overlap(
        evaluated=name or evaluated.name,
        trained=train_name or trained.name,
        count=int(np.count_nonzero(is_shared)),
        looked=samples.hashes.size,
        looked_trained=num_trained,
        is_whole=is_whole,
        examples=_examples(evaluated, trained, samples.rows[is_shared], trained_rows[is_shared]),
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
    """Return stores by their names; a name that is repeated gets a number."""
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

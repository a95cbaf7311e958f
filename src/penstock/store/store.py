"""What does a user hold?  Sample i of a store: shards are opened when somebody asks, and made first if they must be."""

import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.manifest import Manifest, map_lengths, store_fingerprint
from penstock.store.notes import about_turns, in_words, unrendered
from penstock.store.reader import ShardTokens, open_shard
from penstock.store.schema import Counts, id_dtype
from penstock.types import Bools, Ints, Source, Template, Where

if TYPE_CHECKING:
    from penstock.store.background import Background

_MAX_OPEN = 1024  # shards kept mapped; views into a shard outlive its place here


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A record made into tokens; empty where the record was dropped."""

    input_ids: npt.NDArray[np.unsignedinteger[Any]]
    loss_mask: Bools
    row: int
    _store: "Store"

    @property
    def text(self) -> str:
        return self._store.template.decode(self.input_ids)

    @property
    def where(self) -> Where:
        return self._store.source.where(self.row)

    def __len__(self) -> int:
        return len(self.input_ids)

    def __repr__(self) -> str:
        trained = int(np.count_nonzero(self.loss_mask))
        return f"Sample(row {self.row}, {len(self)} tokens, {trained} trained, {self.where})"


class Store:
    """Samples of one source through one template; sample i is row i of the source.

    Which shards there are is known at once.  `manifest` is there when all of them are made; until then `background` is asked
    for a shard before it is opened.
    """

    def __init__(
        self,
        *,
        source: Source,
        template: Template,
        cache: Cache,
        keys: list[str],
        shard_sizes: Ints,
        manifest: Manifest | None = None,
        background: "Background | None" = None,
    ) -> None:
        self.name = source.name
        self.source = source
        self.template = template
        self.cache = cache
        self.shard_sizes = shard_sizes  # (num_shards,) rows per shard
        self.shard_starts = np.concatenate([[0], np.cumsum(shard_sizes)]).astype(np.int64)  # (num_shards + 1,)
        self.fingerprint = store_fingerprint(keys)
        self._manifest = manifest
        self._counts = manifest.counts if manifest else None
        self._keys = keys
        self._background = background
        if background is not None:
            weakref.finalize(self, background.stop)
        self._starts = self.shard_starts.tolist()
        self._shards: OrderedDict[int, ShardTokens] = OrderedDict()
        self._lengths: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def manifest(self) -> Manifest | None:
        """What is promised of the store; None until all of its shards are made."""
        if self._manifest is None and self._background is not None:
            self._manifest = self._background.manifest
        return self._manifest

    @property
    def vocab_size(self) -> int:
        return self.template.vocab_size

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The type of ids on disk: the narrowest that holds the vocabulary."""
        return id_dtype(self.vocab_size)

    @property
    def num_shards(self) -> int:
        return len(self._keys)

    @property
    def counts(self) -> Counts:
        """Rows, tokens, trained tokens, dropped by reason; of a whole store only."""
        if self._counts is None:
            if self.manifest is None:
                raise StoreError(
                    f"{self!r} is not whole yet, so its tokens are not counted; store.wait() waits for that"
                )
            self._counts = self.manifest.counts
        return self._counts

    def wait(self) -> "Store":
        """Return when all shards are made; at once where they were made before."""
        if self.manifest is None and self._background is not None:
            self._background.wait()
        return self

    def want(self, shards: Iterable[int]) -> None:
        """Shards that will be asked for soon, in this order: of a store under way, they are made first."""
        if self.manifest is None and self._background is not None:
            self._background.want(shards)

    def close(self) -> None:
        """Stop making shards; those that are made can be read."""
        if self._background is not None:
            self._background.stop()

    def __getitem__(self, row: int, /) -> Sample:
        if not -len(self) <= row < len(self):
            raise IndexError(f"sample {row} of {self!r}: expected {-len(self)} <= number < {len(self)}")
        row %= len(self)
        shard = bisect_right(self._starts, row) - 1
        tokens = self.tokens(shard)
        local = row - self._starts[shard]
        start, stop = tokens.offsets.item(local), tokens.offsets.item(local + 1)
        mask = tokens.loss_mask(start, stop)
        return Sample(input_ids=tokens.input_ids[start:stop], loss_mask=mask, row=row, _store=self)

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))

    def locate(self, sample_ids: Ints) -> tuple[Ints, Ints]:
        """(shard, sample within it) of each sample id."""
        self._check(sample_ids)
        shards = np.searchsorted(self.shard_starts, sample_ids, side="right") - 1
        return shards, sample_ids - self.shard_starts[shards]

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of every sample, 0 where it was dropped: a view of a file, not to be written to.  Waits until all are made."""
        self.wait()
        if self._lengths is None:
            self._lengths = map_lengths(self.fingerprint, len(self), self.cache)
        return self._lengths

    def lengths_of(self, sample_ids: Ints) -> Ints:
        """Tokens of some samples; of a store under way, only their shards are made."""
        if self.manifest is not None:
            self._check(sample_ids)
            return self.lengths[sample_ids].astype(np.int64)
        lengths = np.empty(len(sample_ids), dtype=np.int64)
        for tokens, chosen, local in self._by_shard(sample_ids):
            lengths[chosen] = tokens.offsets[local + 1] - tokens.offsets[local]
        return lengths

    def has_target(self, sample_ids: Ints, starts: Ints, stops: Ints) -> Bools:
        """Whether pieces start..stop of some samples hold a target: a trained token that is not the first of the piece."""
        found = np.empty(len(sample_ids), dtype=np.bool_)
        for tokens, chosen, local in self._by_shard(sample_ids):
            offsets = tokens.offsets[local].astype(np.int64)
            found[chosen] = tokens.any_trained(offsets + starts[chosen] + 1, offsets + stops[chosen])
        return found

    def _by_shard(self, sample_ids: Ints) -> Iterator[tuple[ShardTokens, Ints, Ints]]:
        """For each shard that samples lie in: its tokens, which of the samples, and their numbers within the shard."""
        shards, local = self.locate(sample_ids)
        order = np.argsort(shards, kind="stable")
        borders = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1))
        self.want(dict.fromkeys(shards.tolist()))
        for first, last in pairwise(borders.tolist()):
            chosen = order[first:last]
            yield self.tokens(int(shards[chosen[0]])), chosen, local[chosen]

    def tokens(self, shard: int) -> ShardTokens:
        """All samples of a shard, flat, as views of its memory map; made first where it does not exist yet."""
        tokens = self._shards.get(shard)
        if tokens is None:
            if self.manifest is None and self._background is not None:
                self._background.make(shard)
            tokens = open_shard(
                self._keys[shard],
                self.cache,
                num_rows=int(self.shard_sizes[shard]),
                vocab_size=self.vocab_size,
                num_bytes=self._manifest.shards[shard].num_bytes if self._manifest else None,
            )
            self._shards[shard] = tokens
            while len(self._shards) > _MAX_OPEN:
                self._shards.popitem(last=False)
        return tokens

    def to_hf(self) -> Any:
        """A `datasets.Dataset` over the same files, without a copy: `input_ids`, `loss_mask`; without what was dropped."""
        from penstock.store.hf import to_hf

        return to_hf(self)

    def describe(self) -> str:
        """One line: rows in, samples out, what was dropped and where first."""
        if self.manifest is None:
            return f"{len(self):,} rows in {self.num_shards:,} shards, which are made while they are used"
        counts = self.counts
        line = f"{counts.rows:,} records → {counts.samples:,} samples, {counts.tokens:,} tokens ({counts.trained:,} in the loss mask)"
        if counts.dropped:
            parts = [
                f"{reason} {part.count:,} (first {self.source.where(part.rows[0])})"
                for reason, part in counts.dropped.items()
            ]
            line += f"; {counts.rows - counts.samples:,} dropped: {', '.join(parts)}"
        return line

    def unrendered(self) -> str:
        """One sentence: which fields the chat template does not print, in how many rows; "" where it prints all."""
        if self.manifest is None:
            return ""
        counts = self.counts
        found = unrendered(counts.notes, assistant_characters=counts.assistant_characters)
        if not found:
            return ""
        parts = [f"{in_words(each, num_rows=counts.rows)}, first {self.source.where(each.rows[0])}" for each in found]
        return f"the chat template does not print {'; '.join(parts)}"

    def odd_turns(self) -> list[str]:
        """Sentences about trained turns that no token ends, or that have only a part of their header."""
        counts = None if self.manifest is None else self.counts
        found = [] if counts is None else about_turns(counts.notes, num_rows=counts.rows)
        return [f"{said} (first {self.source.where(note.rows[0])})" for said, note in found]

    def _check(self, sample_ids: Ints) -> None:
        if len(sample_ids) and not 0 <= int(sample_ids.min()) <= int(sample_ids.max()) < len(self):
            raise IndexError(f"sample ids {sample_ids.min()}..{sample_ids.max()} of {self!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": OrderedDict(), "_lengths": None}

    def __repr__(self) -> str:
        tokens = "tokens not counted yet" if self.manifest is None else f"{_short(self.counts.tokens)} tokens"
        return f"Store({self.name!r}, {len(self):_} samples, {tokens}, {self.fingerprint[:8]})"


def _short(number: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)

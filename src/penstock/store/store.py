"""Samples by number.  A store maps its shards when they are read, and makes them first where they are missing."""

import os
import time
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import index as as_index
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from penstock import plugins
from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.notebook import shown_in_notebooks
from penstock.store.counts import Counts, about_turns, unrendered
from penstock.store.manifest import (
    Lengths,
    Manifest,
    are_checked_by_shard,
    check_shard_lengths,
    manifest_name,
    map_lengths,
    store_fingerprint,
)
from penstock.store.shards import Schema, ShardTokens, open_shard
from penstock.types import (
    AnyTemplate,
    Bools,
    Column,
    Ints,
    Source,
    Template,
    Where,
    longest_sequences,
    opened,
    row_sequences,
)
from penstock.words import percent, plural, short_number

if TYPE_CHECKING:
    from penstock.extras.formats.to_megatron import MegatronFiles
    from penstock.store.build import Builder

_MAX_OPEN = 1024  # shards kept mapped; views of a shard outlive its place here
RENEW_SECONDS = 3600.0  # between two renewals of what is open, which `prune` keeps for a day


@shown_in_notebooks
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A record made into tokens; empty where the record was dropped."""

    input_ids: npt.NDArray[np.unsignedinteger[Any]]
    loss_mask: Bools
    row: int
    # declared by the template: an array, or a value per sample
    columns: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # why the record was dropped; "" if it was not
    _store: "Store"

    @property
    def text(self) -> str:
        return self._store.template.decode(self.input_ids)

    @property
    def where(self) -> Where:
        return self._store.source.locate(self.row)

    def __len__(self) -> int:
        return len(self.input_ids)

    def __repr__(self) -> str:
        trained = int(np.count_nonzero(self.loss_mask))
        return f"Sample(record {self.row}, {plural(len(self), 'token')}, {trained} trained, {self.where})"


def _hub_plugin(name: str, what: str) -> Any:
    if name not in plugins.names("exports"):
        raise StoreError(f"{what} needs penstock.extras.remote, which is not installed")
    return plugins.load("exports", name)


class _OpenStores:
    """The stores that this process has open.  Whichever is read renews all of them, so that an idle one is kept, too."""

    def __init__(self) -> None:
        self._stores: weakref.WeakSet[Store] = weakref.WeakSet()
        self._next_renewal = 0.0

    def add(self, store: "Store") -> None:
        self._stores.add(store)

    def renew(self) -> None:
        """Renew the manifests, if an hour has passed; cheap enough to be called often."""
        now = time.monotonic()
        if now < self._next_renewal:
            return
        self._next_renewal = now + RENEW_SECONDS
        for store in [*self._stores]:
            if isinstance(store.manifest, Manifest):
                store.cache.renew(manifest_name(store.fingerprint))


_OPEN_STORES = _OpenStores()


@shown_in_notebooks
class Store:
    """Samples of one source through one template; sample i is record i of the source.

    The list of shards is known at once.  While shards are being made, `manifest` is None, and opening a shard waits for it.
    """

    def __init__(
        self,
        *,
        source: Source,
        template: AnyTemplate,
        cache: Cache,
        keys: list[str],
        shard_sizes: Ints,
        manifest: Manifest | None = None,
        builder: "Builder | None" = None,
    ) -> None:
        self.name = source.name
        self.source = source
        self.unopened_template = template
        self.cache = cache
        self.shard_sizes = shard_sizes  # (num_shards,) rows per shard
        self.shard_starts = np.concatenate([[0], np.cumsum(shard_sizes)]).astype(
            np.int64
        )  # (num_shards + 1,)
        self.num_shards = len(keys)
        self.fingerprint = store_fingerprint(keys)
        self._manifest = manifest
        self._keys = keys
        self._builder = builder
        if builder is not None:
            weakref.finalize(self, builder.stop)
        self._starts = self.shard_starts.tolist()
        self._shards: OrderedDict[int, ShardTokens] = OrderedDict()
        _OPEN_STORES.add(self)

    @property
    def template(self) -> Template:
        """What made the samples; opened when it is first needed."""
        return opened(self.unopened_template)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def manifest(self) -> Manifest | None:
        """None until all shards are made."""
        if self._manifest is None and self._builder is not None:
            self._manifest = self._builder.manifest
        return self._manifest

    @cached_property
    def schema(self) -> Schema:
        return Schema.of(self.unopened_template) if self.manifest is None else self.manifest.schema

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of samples besides `input_ids` and `loss_mask`, as the template declared them."""
        return self.schema.columns

    @property
    def vocab_size(self) -> int:
        return self.schema.vocab_size

    @cached_property
    def counts(self) -> Counts:
        """Records, tokens, trained tokens, dropped by reason; known when all shards are made."""
        if self.manifest is None:
            raise StoreError(
                f"{self!r} is not complete yet, so its tokens are not counted; call store.wait() first"
            )
        return self.manifest.counts

    def wait(self) -> "Store":
        """Return when all shards are made."""
        if self.manifest is None and self._builder is not None:
            self._builder.wait()
        return self

    def want(self, shards: Iterable[int]) -> None:
        """Make these shards first, in this order: they will be read soon.  Of a complete store in a bucket, fetch them at once."""
        if self.manifest is None and self._builder is not None:
            self._builder.want(shards)
        elif self.manifest is not None and self.cache.is_remote:
            entries = self.manifest.shards
            self.cache.fetch_all(
                [entries[shard].file for shard in shards if shard not in self._shards]
            )

    def close(self) -> None:
        """Stop making shards; finished ones can be read."""
        if self._builder is not None:
            self._builder.stop()

    @overload
    def __getitem__(self, row: int, /) -> Sample: ...
    @overload
    def __getitem__(self, row: slice | Sequence[int], /) -> list[Sample]: ...
    def __getitem__(self, row: Any, /) -> Any:
        """Return a sample by its number, or a list of samples: their tokens stay in the file until they are used."""
        if isinstance(row, slice):
            return [self[number] for number in range(len(self))[row]]
        if isinstance(row, list | tuple | range) or (isinstance(row, np.ndarray) and row.ndim):
            return [self[number] for number in row]
        try:
            row = as_index(row)
        except TypeError:
            raise TypeError(
                f"{self!r}[{row!r}]: expected the number of a sample, a slice or a list of numbers; "
                "store[0].input_ids, .loss_mask, .text and .where are what a sample has"
            ) from None
        if not -len(self) <= row < len(self):
            raise IndexError(
                f"sample {row} of {self!r}: expected {-len(self)} <= number < {len(self)}"
            )
        row %= len(self)
        shard = bisect_right(self._starts, row) - 1
        tokens = self.tokens(shard)
        local = row - self._starts[shard]
        start = tokens.offsets.item(local)
        stop = tokens.offsets.item(local + 1)
        columns = {column.name: tokens.column_of(column, local) for column in self.schema.columns}
        ids = tokens.input_ids[start:stop]
        mask = tokens.loss_mask(start, stop)
        return Sample(
            input_ids=ids,
            loss_mask=mask,
            row=row,
            columns=columns,
            reason=tokens.reason(local),
            _store=self,
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))

    def locate(self, sample_ids: Ints) -> tuple[Ints, Ints]:
        """(shard, sample within it) of each sample id."""
        self._check(sample_ids)
        shards = np.searchsorted(self.shard_starts, sample_ids, side="right") - 1
        return shards, sample_ids - self.shard_starts[shards]

    @cached_property
    def lengths(self) -> Lengths:
        """Tokens of every sample, 0 where it was dropped: a read-only view of a file.  Waits until all shards are made."""
        return self._all_lengths[: len(self)]

    @property
    def longest(self) -> Lengths:
        """Tokens of the longest sequence of every sample, which max_length limits: of all its tokens, unless samples are pairs."""
        return self._all_lengths[-len(self) :] if len(self) else self.lengths

    @cached_property
    def _all_lengths(self) -> Lengths:
        self.wait()
        sequences = row_sequences(self.columns)
        return map_lengths(self.fingerprint, len(self), self.cache, sequences=sequences)

    def lengths_of(self, sample_ids: Ints) -> Ints:
        """Tokens of some samples; of a store under way, only their shards are made."""
        if self.manifest is not None:
            self._check(sample_ids)
            return self.lengths[sample_ids].astype(np.int64)
        lengths = np.empty(len(sample_ids), dtype=np.int64)
        for tokens, chosen, local in self._by_shard(sample_ids):
            lengths[chosen] = tokens.offsets[local + 1] - tokens.offsets[local]
        return lengths

    def longest_of(self, sample_ids: Ints) -> Ints:
        """Tokens of the longest sequence of some samples; of a store under way, only their shards are made."""
        if row_sequences(self.columns) == 1:
            return self.lengths_of(sample_ids)
        if self.manifest is not None:
            self._check(sample_ids)
            return self.longest[sample_ids].astype(np.int64)
        longest = np.empty(len(sample_ids), dtype=np.int64)
        for tokens, chosen, local in self._by_shard(sample_ids):
            longest[chosen] = longest_sequences(tokens.columns, tokens.offsets)[local]
        return longest

    def has_target(self, sample_ids: Ints, starts: Ints, stops: Ints) -> Bools:
        """Whether pieces start..stop of some samples hold a target: a trained token that is not the first of the piece."""
        has = np.empty(len(sample_ids), dtype=np.bool_)
        for tokens, chosen, local in self._by_shard(sample_ids):
            offsets = tokens.offsets[local].astype(np.int64)
            has[chosen] = tokens.any_trained(offsets + starts[chosen] + 1, offsets + stops[chosen])
        return has

    def _by_shard(self, sample_ids: Ints) -> Iterator[tuple[ShardTokens, Ints, Ints]]:
        """For each shard of these samples: its tokens, which of the samples it contains, and their numbers within it."""
        shards, local = self.locate(sample_ids)
        order = np.argsort(shards, kind="stable")
        borders = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1))
        self.want(dict.fromkeys(shards.tolist()))
        for first, last in pairwise(borders.tolist()):
            chosen = order[first:last]
            yield self.tokens(int(shards[chosen[0]])), chosen, local[chosen]

    def tokens(self, shard: int) -> ShardTokens:
        """All samples of a shard, flat, as views of its memory map."""
        _OPEN_STORES.renew()
        tokens = self._shards.get(shard)
        if tokens is None:
            tokens = self._open_shard(shard)
            self._shards[shard] = tokens
            while len(self._shards) > _MAX_OPEN:
                self._shards.popitem(last=False)
        return tokens

    def _open_shard(self, shard: int) -> ShardTokens:
        manifest = self.manifest
        if manifest is None and self._builder is not None:
            self._builder.make(shard)
        self.cache.reads(self)
        key = self._keys[shard]
        num_rows = int(self.shard_sizes[shard])
        if manifest is None:
            return open_shard(key, self.cache, self.schema, num_rows=num_rows)
        entry = manifest.shards[shard]
        self.cache.fetch_all([entry.file])
        tokens = open_shard(
            key,
            self.cache,
            self.schema,
            num_rows=num_rows,
            num_bytes=entry.num_bytes,
            file_digest=entry.digest,
        )
        if are_checked_by_shard(len(self)):
            listed = self.lengths[self._starts[shard] : self._starts[shard + 1]]
            check_shard_lengths(np.diff(tokens.offsets), listed, self.fingerprint, self.cache)
            if row_sequences(self.columns) > 1:
                listed = self.longest[self._starts[shard] : self._starts[shard + 1]]
                longest = longest_sequences(tokens.columns, tokens.offsets)
                check_shard_lengths(longest, listed, self.fingerprint, self.cache)
        return tokens

    def rows_dropped_as(self, reason: str) -> Iterator[int]:
        """Yield the records of a complete store that were dropped for this reason, ascending; only shards with such records are read."""
        manifest = self.wait().manifest
        assert manifest is not None
        for shard, entry in enumerate(manifest.shards):
            reasons = tuple(entry.counts.dropped)
            if reason in reasons:
                code = 1 + reasons.index(reason)
                rows = np.flatnonzero(self.tokens(shard).reasons == code)
                yield from (self._starts[shard] + rows).tolist()

    def close_shards(self, *, keep: Callable[[str], bool]) -> None:
        """Close mapped shards, except those whose keys are kept; views of them stay valid."""
        for shard in [shard for shard in self._shards if not keep(self._keys[shard])]:
            self._shards.pop(shard, None)

    def to_hf(self) -> Any:
        """A `datasets.Dataset` of the samples and their columns over the same files: no copy, and no dropped records."""
        try:
            import datasets
            from datasets.table import InMemoryTable
        except ImportError as error:
            raise StoreError(
                "to_hf() needs the package `datasets`: pip install datasets"
            ) from error
        import pyarrow as pa

        batches = [self.tokens(shard).batch for shard in range(self.num_shards)]
        table = pa.Table.from_batches(batches, self.schema.to_arrow()).drop_columns(
            ["row", "reason"]
        )
        made = datasets.Dataset(InMemoryTable(table), fingerprint=self.fingerprint[:16])
        return made if self.lengths.all() else made.select(np.flatnonzero(self.lengths))

    def to_megatron(
        self, prefix: str | os.PathLike[str], *, drop_loss_mask: bool = False
    ) -> "MegatronFiles":
        """Write `prefix.bin` and `prefix.idx` for Megatron: each sample is a sequence and a document.

        drop_loss_mask: also write samples with tokens that are not trained; Megatron trains every token.
        """
        if "megatron" not in plugins.names("exports"):
            raise StoreError("to_megatron() needs penstock.extras.formats, which is not installed")
        write: Callable[..., MegatronFiles] = plugins.load("exports", "megatron")
        return write(self, prefix, drop_loss_mask=drop_loss_mask)

    def push_to_hub(
        self,
        name: str,
        *,
        recipe: Any = None,
        tokenizer: str | None = None,
        license: str | None = None,
        license_name: str | None = None,
        license_link: str | None = None,
        source_licenses: Mapping[str, str] | None = None,
        private: bool | None = None,
        commit_message: str | None = None,
        revision: str | None = None,
        token: str | None = None,
    ) -> str:
        """Upload this finished store to the Hugging Face hub as `org/name`, with a card; return the commit.

        All files are one commit; those of an earlier store in this dataset are removed by it.
        recipe: for the card, a file or a Recipe; of local paths, only the last part is written.  tokenizer: its name on the hub.
        license, license_name, license_link: of the dataset, as the hub has them; the other two belong to license="other".
        source_licenses: of each source.  private: who may read a new dataset; None: as the organization says.
        revision: a branch, if not the main one.
        """
        push: Callable[..., str] = _hub_plugin("hub", "push_to_hub()")
        return push(
            self,
            name,
            recipe=recipe,
            tokenizer=tokenizer,
            license=license,
            license_name=license_name,
            license_link=license_link,
            source_licenses=source_licenses,
            private=private,
            commit_message=commit_message,
            revision=revision,
            token=token,
        )

    @staticmethod
    def load_from_hub(
        name: str,
        *,
        revision: str | None = None,
        tokenizer: Any = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> "Store":
        """Return the store that `push_to_hub` has uploaded, after every byte was checked.

        Its batches are those of the store that was pushed; it has tokens and masks, not the records.
        revision: a branch, tag or commit, which `org/name@COMMIT` names, too.
        tokenizer: the one that made the samples, for `sample.text`; batches do not need it.
        """
        load: Callable[..., Store] = _hub_plugin("from_hub", "load_from_hub()")
        return load(name, revision=revision, tokenizer=tokenizer, cache_dir=cache_dir)

    def why_empty(self) -> str | None:
        """Return why no record gives a sample; None if one does, or if shards are still being made."""
        if self.manifest is None or self.counts.samples:
            return None
        reasons = [
            f"{plural(part.count, 'record')} {reason}"
            for reason, part in self.counts.dropped.items()
        ]
        why = ", ".join(reasons) or "there are no records"
        return f"none of {plural(len(self), 'record')} gives a sample: {why}"

    def describe(self) -> str:
        """Return one line: records in, samples out, dropped records by reason, with the first files and lines."""
        if self.manifest is None:
            return f"{plural(len(self), 'record')} in {plural(self.num_shards, 'shard')}, which are made while they are used"
        counts = self.counts
        line = (
            f"{plural(counts.rows, 'record')} → {plural(counts.samples, 'sample')}, "
            f"{plural(counts.tokens, 'token')} ({counts.trained:,} in the loss mask)"
        )
        parts = [
            f"{reason} {part.count:,} (first {self.source.locate(part.rows[0])})"
            for reason, part in counts.dropped.items()
        ]
        if not parts:
            return line
        lost = counts.rows - counts.samples
        return f"{line}; {lost:,} dropped ({percent(lost, counts.rows)}): {', '.join(parts)}"

    def unrendered(self) -> str:
        """One sentence: fields that the chat template does not print, and in how many records; "" where it prints all."""
        if self.manifest is None:
            return ""
        fields = unrendered(
            self.counts.notes, assistant_characters=self.counts.assistant_characters
        )
        parts = [
            f"{field.describe(len(self))}, first {self.source.locate(field.rows[0])}"
            for field in fields
        ]
        return f"the chat template does not print {'; '.join(parts)}" if parts else ""

    def odd_turns(self) -> list[str]:
        """Sentences about trained turns that no token ends, or that have only a part of their header."""
        found = [] if self.manifest is None else about_turns(self.counts.notes, num_rows=len(self))
        return [f"{text} (first {self.source.locate(note.rows[0])})" for text, note in found]

    def _check(self, sample_ids: Ints) -> None:
        if len(sample_ids) and not 0 <= int(sample_ids.min()) <= int(sample_ids.max()) < len(self):
            raise IndexError(f"sample ids {sample_ids.min()}..{sample_ids.max()} of {self!r}")

    def __getstate__(self) -> dict[str, Any]:
        kept = {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("lengths", "_all_lengths")
        }
        return {**kept, "_shards": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _OPEN_STORES.add(self)

    def __repr__(self) -> str:
        records = plural(len(self), "record")
        if self.manifest is None:
            content = f"{records}, samples not counted yet"
        else:
            samples = plural(self.counts.samples, "sample")
            of_records = "" if self.counts.samples == len(self) else f" of {records}"
            content = f"{samples}{of_records}, {short_number(self.counts.tokens)} tokens"
        return f"Store({self.name!r}, {content}, {self.fingerprint[:8]})"

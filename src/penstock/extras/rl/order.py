"""Which record is prompt number n of a run: a pure function of the data, the settings and the seed."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprint import digest, fingerprint
from penstock.loader.plans import is_streamed
from penstock.options import PromptOptions
from penstock.plan.counters import Counters
from penstock.plan.plan import Plan, PlanSource, Position
from penstock.plan.settings import PlanSettings, weights_as_text
from penstock.sources.base import in_groups
from penstock.sources.concat import as_rows
from penstock.sources.filter import RecordFilter
from penstock.store.records import NamedStores, read_stores
from penstock.types import PROMPT_LENGTHS, Bools, Ints, Record

_NO_LIMIT = 1 << 40  # tokens; longer prompts do not exist
_NEAR = 256  # ordinals between two that are looked up together
_FIXED = {
    "packing": "none",
    "last_step": "wrap",
}  # a row is one prompt, and an epoch follows the one before without a gap


class OrderPlace(NamedTuple):
    """Where the prompts of some ordinals are: epoch, source and row of each."""

    epochs: list[int]
    sources: Ints
    rows: Ints


def open_order(
    data: Any, *, max_length: int | None, settings: dict[str, Any], only: RecordFilter | None = None
) -> "PromptOrder":
    """Return the order of the prompts of data.  A stream gives them while it is read, if its order can be followed then."""
    named = read_stores(data, as_rows)
    order_settings = _settings_of_order(named.weights, max_length, settings)
    order_class = PromptOrder
    if is_streamed(named.stores, order_settings):
        from penstock.extras.rl.stream_order import StreamPromptOrder  # it is a PromptOrder

        order_class = StreamPromptOrder
    return order_class(named, order_settings, max_length=max_length, only=only)


def _settings_of_order(
    weights: list[float] | None, max_length: int | None, settings: dict[str, Any]
) -> PlanSettings:
    for name, value in _FIXED.items():
        if settings.get(name, value) != value:
            raise PlanError(
                f"{name}={settings[name]!r} has no effect on prompts: each is given by itself; leave it out"
            )
    known_names = [field.name for field in fields(PlanSettings)]
    for name in settings:
        if name not in known_names:
            from penstock.aliases import instead  # only for an error

            all_names = [*known_names, *PromptOptions.__annotations__]
            hint = instead(name, settings[name], all_names, function="Prompts")
            raise PlanError(
                f"unknown option {name!r} of Prompts{hint}; help(penstock.Prompts) lists them"
            )
    order_settings = PlanSettings(
        max_length=max_length or _NO_LIMIT,
        weights=weights_as_text(weights),
        **{**settings, **_FIXED},
    )
    if order_settings.on_overlong not in ("drop", "error"):
        raise PlanError(
            f"on_overlong={order_settings.on_overlong!r} would cut prompts; choose 'drop', which counts them, or 'error'"
        )
    return order_settings


class PromptOrder:
    """The prompts of one or several stores or sources, epoch after epoch, by ordinal."""

    plan: Plan

    def __init__(
        self,
        named: NamedStores,
        settings: PlanSettings,
        *,
        max_length: int | None,
        only: RecordFilter | None = None,
    ) -> None:
        names = named.names
        self.stores = named.stores
        self._check(names, settings, is_records=named.is_records, max_length=max_length)
        self._sources = [as_rows(store.source) for store in self.stores]
        self._kept: list[Bools | None] = [None] * len(
            names
        )  # which rows of a source the filter keeps; None for all
        self.filtered: Counter[str] = (
            Counter()
        )  # prompts that it leaves out, by the name of their source
        self._begin(names, settings, only)

    def _begin(
        self, names: Sequence[str], settings: PlanSettings, only: RecordFilter | None
    ) -> None:
        """Make the plan, and count what it leaves out."""
        sources = [
            PlanSource(
                name=name,
                key=self._key(number, name, only),
                shard_sizes=self.stores[number].shard_sizes,
            )
            for number, name in enumerate(names)
        ]
        self.plan = Plan(sources, self._lengths, settings)
        self._starts = [0, self.plan.num_rows(0)]  # ordinals at which epochs begin
        self.dropped: Counters = self.plan.blocks.count_dropped(
            0
        )  # prompts of an epoch that are not given
        if not self._starts[1]:
            by_filter = f"{self.filtered.total():,} left out by the filter" if self.filtered else ""
            found = ", ".join(filter(None, [self.dropped.dropped_words(), by_filter]))
            found = found or "; ".join(store.describe() for store in self.stores)
            raise PlanError(f"there are no prompts: {found}; raise max_length, or check the data")

    def _key(self, number: int, name: str, only: RecordFilter | None) -> str:
        """Find the prompts of a source that the filter leaves out; return the key of the source, which depends on them."""
        store = self.stores[number]
        if only is None:
            return str(store.fingerprint)
        kept = only.passing(self._sources[number])
        kept |= (
            store.lengths_of(np.arange(kept.size)) == 0
        )  # they are counted under reasons of their own
        if kept.all():
            return str(store.fingerprint)
        self._kept[number] = kept
        self.filtered[name] = int((~kept).sum())
        return fingerprint([store.fingerprint, "filter", digest(np.packbits(kept).tobytes())])

    def _lengths(self, source: int, samples: Ints) -> Ints:
        """Return the lengths of samples, 0 for those that the filter leaves out."""
        lengths: Ints = self.stores[source].lengths_of(samples)
        kept = self._kept[source]
        return lengths if kept is None else np.where(kept[samples], lengths, 0)

    def _check(
        self,
        names: Sequence[str],
        settings: PlanSettings,
        *,
        is_records: bool,
        max_length: int | None,
    ) -> None:
        """Refuse stores that hold something else than prompts, or that are being made."""
        if is_records and max_length is not None:
            raise PlanError(
                f"max_length={max_length} counts tokens, and plain records have none; prepare them with template='prompt', or leave "
                f"max_length out"
            )
        for name, store in zip(names, () if is_records else self.stores, strict=False):
            if PROMPT_LENGTHS not in store.columns:
                raise PlanError(
                    f"source {name!r}: {store!r} does not hold prompts, expected a store made with template='prompt'; or pass the "
                    f"source itself for plain records"
                )
            if store.manifest is None and not is_streamed(self.stores, settings):
                raise PlanError(
                    f"source {name!r}: {store!r} is still being made; wait for it with store.wait()"
                )

    def check_epochs(self, epochs: int | None) -> None:
        """Refuse a number of epochs that the data cannot give."""

    def why_left_out(self, row: int, record: Record, input_ids: Any) -> str | None:
        """Return None: what is left out has no ordinal."""
        return None

    def total(self, epochs: int) -> int:
        """Return the number of prompts in the first `epochs` epochs."""
        if self.plan.settings.weights is None:  # every epoch gives every prompt once
            return epochs * self._starts[1]
        while len(self._starts) <= epochs:
            self._starts.append(self._starts[-1] + self.plan.num_rows(len(self._starts) - 1))
        return self._starts[epochs]

    def epoch_of(self, ordinal: int) -> int:
        """Return the epoch of an ordinal."""
        if self.plan.settings.weights is None:
            return ordinal // self._starts[1]
        while self._starts[-1] <= ordinal:
            self.total(len(self._starts))
        return bisect_right(self._starts, ordinal) - 1

    def find(self, ordinals: Sequence[int]) -> OrderPlace:
        """Look up ordinals; those near to each other are looked up together."""
        steps = np.diff(wanted := np.array(ordinals, np.int64))
        breaks = (np.flatnonzero((steps < 1) | (steps > _NEAR)) + 1).tolist()
        parts = (
            [self._spans(wanted[a:b]) for a, b in pairwise([0, *breaks, len(ordinals)])]
            if ordinals
            else []
        )
        sources = np.concatenate([np.empty(0, np.int64), *(part["source"] for part in parts)])
        rows = np.concatenate([np.empty(0, np.int64), *(part["sample"] for part in parts)])
        return OrderPlace([self.epoch_of(ordinal) for ordinal in ordinals], sources, rows)

    def _spans(self, ordinals: Ints) -> np.ndarray:
        """Return the spans of ascending ordinals, one for each: those of all from the first to the last are made."""
        first = int(ordinals[0])
        count = int(ordinals[-1] - ordinals[0]) + 1
        epoch = self.epoch_of(first)
        start = Position(epoch=epoch)
        position = self.plan.seek(first - self.total(epoch), 1, epochs=epoch + 1, start=start)
        step = self.plan.step(position, count, epochs=None)
        assert step is not None and len(step.rows.spans) == count, (
            "an endless plan gives a row for every prompt"
        )
        found: np.ndarray = step.rows.spans[ordinals - first]
        return found

    def records(self, place: OrderPlace) -> list[Record]:
        """Read the records of these prompts; those of one source together."""
        return in_groups(
            place.sources,
            lambda source, chosen: self._sources[source].records_at(place.rows[chosen]),
        )

    def samples(self, place: OrderPlace) -> list[tuple[Any, dict[str, Any]]]:
        """Return the ids of these prompts, and the columns that their templates declare; (None, {}) for plain records."""
        return in_groups(
            place.sources, lambda source, chosen: self._samples(source, place.rows[chosen])
        )

    def _samples(self, source: int, rows: Ints) -> list[tuple[Any, dict[str, Any]]]:
        store = self.stores[source]
        if not store.columns:
            return [(None, {})] * rows.size
        columns = [column for column in store.columns if column != PROMPT_LENGTHS]
        found = []
        for shard, local in zip(*(each.tolist() for each in store.locate(rows)), strict=True):
            tokens = store.tokens(shard)
            start = tokens.offsets.item(local)
            stop = tokens.offsets.item(local + 1)
            own = {column.name: tokens.column_of(column, local) for column in columns}
            found.append((tokens.input_ids[start:stop], own))
        return found

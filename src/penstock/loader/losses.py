"""Refuse to train when too much of a dataset would never reach a batch (`max_dropped`).

What counts: records that gave no sample when they were prepared, samples that are longer than max_length under `on_overlong: drop`, and
samples that `on_overlong: truncate` cuts before the first token to train on.  What counts not: the ends of samples that are cut because
the user asked for it, and the last step of an epoch.

Each dataset is judged by itself: one that is lost is a fault, however small its share of a mixture is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PlanError
from penstock.plan.settings import PlanSettings
from penstock.reasons import NOTHING_TO_TRAIN, OVERLONG, find_reason, meaning
from penstock.words import percent, plural

if TYPE_CHECKING:
    from penstock.store import Store
    from penstock.store.records import RecordStore

_MOST_LENGTHS = 1 << 25  # samples whose lengths are read; of more, this many from all over the data
_CHUNKS = 64
_MOST_CUT = 100_000  # cut samples that are looked into for a token to train on


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What of a dataset never reaches a batch."""

    records: int
    dropped: dict[str, int]  # reason → records
    tokens: int
    tokens_dropped: int  # of samples; records without a sample have none

    @property
    def share(self) -> float:
        """The larger one of two shares: of the records, and of the tokens."""
        of_records = sum(self.dropped.values()) / self.records if self.records else 0.0
        of_tokens = self.tokens_dropped / self.tokens if self.tokens else 0.0
        return max(of_records, of_tokens)

    @property
    def is_everything(self) -> bool:
        return sum(self.dropped.values()) >= self.records

    def describe(self) -> str:
        """Say how much is lost, in records and in tokens, and why: `273 of 300 records (91.0%) …`."""
        total = sum(self.dropped.values())
        reasons = ", ".join(
            f"{reason} {count:,} ({meaning(reason)})"
            for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1])
        )
        tokens = ""
        if self.tokens_dropped:
            tokens = f", with {percent(self.tokens_dropped, self.tokens)} of the tokens,"
        return (
            f"{total:,} of {plural(self.records, 'record')} ({percent(total, self.records)}){tokens} "
            f"would not be trained on: {reasons}"
        )

    def advice(self, *, can_cut: bool = True) -> str:
        """What changes it, by reason.  can_cut: False for samples with media, which have to stay whole."""
        known = {reason: find_reason(reason) for reason in self.dropped}
        advice_of = {name: reason.advice for name, reason in known.items() if reason is not None}
        if OVERLONG in advice_of and not can_cut:
            advice_of[OVERLONG] = "raise max_length"
        return "; ".join(dict.fromkeys(filter(None, advice_of.values())))


def losses_of(store: "Store | RecordStore", settings: PlanSettings) -> Losses | None:
    """Count what of a store never reaches a batch under these settings; None if it is still being made, or a stream not read yet."""
    source: Any = store.source
    if getattr(source, "is_stream", False) and not source.has_ended:
        return None  # counting would read it to its end, and it may have none
    counts = getattr(store, "counts", None) if getattr(store, "manifest", None) else None
    if counts is None:
        unreadable = getattr(store, "dropped", None)  # of plain records
        if unreadable is None:
            return None
        return Losses(
            records=len(store.source), dropped=dict(unreadable), tokens=0, tokens_dropped=0
        )
    dropped = {reason: part.count for reason, part in counts.dropped.items()}
    tokens_dropped = 0
    if not settings.method.cuts:
        samples, tokens_dropped = _long_samples(store, settings)  # type: ignore[arg-type]
        for reason, count in samples.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return Losses(
        records=counts.rows,
        dropped={reason: count for reason, count in dropped.items() if count},
        tokens=counts.tokens,
        tokens_dropped=tokens_dropped,
    )


def _long_samples(store: "Store", settings: PlanSettings) -> tuple[dict[str, int], int]:
    """Return samples that max_length loses, by reason, and their tokens."""
    if settings.on_overlong not in ("drop", "truncate"):
        return {}, 0
    lengths = store.lengths
    longest = store.longest
    looked = 0
    count = 0
    tokens = 0
    long_ids = []
    for start, stop in _chunks(len(lengths)):
        some = np.asarray(lengths[start:stop])
        over = np.flatnonzero(longest[start:stop] > settings.capacity)
        looked += some.size
        count += over.size
        tokens += int(some[over].sum(dtype=np.int64))
        long_ids.append(over + start)
    if settings.on_overlong == "drop":
        scale = len(lengths) / max(looked, 1)  # 1 unless only a part of the lengths was read
        return {OVERLONG: round(count * scale)}, round(tokens * scale)
    if not 0 < count <= _MOST_CUT:
        return {}, 0
    # only shards know what is trained; to fetch all of them before the first step would cost more than it saves
    if store.cache.is_remote:
        return {}, 0
    ids = np.concatenate(long_ids)
    starts = np.zeros(ids.size, np.int64)
    has_target = store.has_target(ids, starts, np.full(ids.size, settings.capacity))
    without = ids[~has_target]
    return {NOTHING_TO_TRAIN: without.size}, int(lengths[without].sum(dtype=np.int64))


def _chunks(num_samples: int) -> Iterable[tuple[int, int]]:
    """Yield ranges of samples to look at: all of them, or evenly spread ones."""
    if num_samples <= _MOST_LENGTHS:
        yield 0, num_samples
        return
    size = _MOST_LENGTHS // _CHUNKS
    for number in range(_CHUNKS):
        start = number * (num_samples - size) // (_CHUNKS - 1)
        yield start, start + size


def excessive_losses(
    names: Sequence[str],
    stores: "Sequence[Store | RecordStore]",
    settings: PlanSettings,
    max_dropped: float,
) -> str | None:
    """Say which dataset loses more than `max_dropped` allows, why, and what to set; None if none does.

    If nothing at all is left, the run has no step, and the error about that says more.
    """
    all_losses = [losses_of(store, settings) for store in stores]
    if all(losses is not None and losses.is_everything for losses in all_losses):
        return None
    for name, store, losses in zip(names, stores, all_losses, strict=True):
        if losses is None or losses.share <= max_dropped:
            continue
        can_cut = all(column.per != "list" for column in getattr(store, "columns", ()))
        advice = losses.advice(can_cut=can_cut)
        more = f"{advice}; or " if advice else ""
        enough = min(1.0, np.ceil(100 * losses.share) / 100)
        return (
            f"dataset {name!r}: {losses.describe()}; that is more than max_dropped={max_dropped:g} allows; "
            f"{more}set max_dropped={enough:g} to train on what is left"
        )
    return None


def refuse_losses(
    names: Sequence[str],
    stores: "Sequence[Store | RecordStore]",
    settings: PlanSettings,
    max_dropped: float,
) -> None:
    """Raise PlanError if a dataset loses more than `max_dropped` allows."""
    why = excessive_losses(names, stores, settings, max_dropped)
    if why is not None:
        raise PlanError(why)

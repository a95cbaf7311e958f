"""Choose what the page shows of an epoch: some rows, and some samples token by token.

The same loader gives the same choice, and its size does not depend on the size of the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.extras.view.thumbnails import Picture, Thumbnails
from penstock.loader import Loader
from penstock.plan.block import Rows
from penstock.plan.permutation import derive, keyed_words
from penstock.report.numbers import stores
from penstock.report.trace import (
    Landing,
    Positions,
    RecordTrace,
    RowTrace,
    epoch_steps,
    outcome,
    trace_sample,
)
from penstock.store import Store
from penstock.words import spread

BINS = 20  # of 5 % each, in the histograms of filled and of trained shares
MASKS_READ = 2_000  # samples of a source whose trained share is counted
# tokens shown from the start and the end of a long sample
HEAD = 700
LAST_STEP = 100

_MOST_ENDS = 8  # sources whose longest and shortest samples are shown
_MOST_DROPS = 12  # dropped records that are shown, and
_DROPS_EACH = 2  # of one reason
_RUNS = 1_000  # points in which the trained part of a row is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A sample, and why it was chosen."""

    source: int
    sample: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """A chosen sample; `record` holds its tokens without the `left_out` ones after the first HEAD."""

    choice: Choice
    record: RecordTrace
    num_tokens: int
    left_out: int
    special: frozenset[int]  # ids of special tokens
    pictures: tuple[Picture, ...] = ()  # its images, videos and audio clips


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRow:
    """A row as segments, with its trained runs (start, stop), no finer than a screen shows."""

    number: int  # in the epoch
    row: RowTrace
    trained: tuple[tuple[int, int], ...]


def choose_samples(loader: Loader, num_samples: int) -> list[Choice]:
    """Choose the longest and shortest sample of each source, some at random, and the first that were dropped, by source.

    The random ones depend on the plan's seed and the name of the source.
    """
    found = list(stores(loader).values())
    chosen: dict[tuple[int, int], str] = {}
    for source, store in enumerate(found):
        lengths = store.lengths
        if source < _MOST_ENDS and lengths.any():
            chosen.setdefault((source, int(lengths.argmax())), "longest")
            chosen.setdefault(
                (source, int(np.where(lengths > 0, lengths, lengths.max()).argmin())), "shortest"
            )
        share = num_samples // len(found) + (source < num_samples % len(found))
        key = derive(loader.plan.settings.seed, "report", loader.plan.sources[source].name)
        for sample in _random_samples(lengths, share, key):
            chosen.setdefault((source, sample), "random")
    drops = [
        (source, int(row), reason)
        for source, store in enumerate(found)
        for reason, part in store.counts.dropped.items()
        for row in part.rows[:_DROPS_EACH]
    ]
    for source, row, reason in drops[:_MOST_DROPS]:
        chosen.setdefault((source, row), f"dropped: {reason}")
    choices = [
        Choice(source=source, sample=sample, why=why) for (source, sample), why in chosen.items()
    ]
    return sorted(choices, key=lambda each: each.source)


def _random_samples(lengths: npt.NDArray[np.int32], count: int, key: int) -> list[int]:
    """Up to `count` samples that have tokens."""
    if lengths.size <= count:
        return [int(number) for number in np.flatnonzero(lengths)]
    tries = (keyed_words(key, 8 * count) % np.uint64(lengths.size)).astype(np.int64)
    return list(dict.fromkeys(int(number) for number in tries if lengths[number] > 0))[:count]


class EpochSample:
    """What the page shows of an epoch; `add` takes the rows of epoch 0 in order."""

    def __init__(self, loader: Loader, choices: Sequence[Choice], num_rows: int) -> None:
        self.fills = np.zeros(
            BINS + 1, np.int64
        )  # rows by filled share; the last bin counts rows without padding
        # in all rows, and in one
        self.num_spans = 0
        self.most_spans = 0
        self.rows: list[DrawnRow] = []
        self._loader = loader
        self._stores = stores(loader)
        self._choices = choices
        in_steps = (
            epoch_steps(loader, 0)[2] * loader.batch_size * loader.world.size
        )  # fewer than all with last_step="drop"
        self._chosen_rows = spread(min(loader.plan.num_rows(0), in_steps), num_rows)[::-1]
        self._positions = Positions(loader, [(each.source, each.sample) for each in choices])
        self._num_rows = 0

    def add(self, rows: Rows) -> None:
        used = np.diff(
            np.concatenate(([0], np.cumsum(rows.spans["stop"] - rows.spans["start"])))[rows.starts]
        )
        self.fills += np.bincount(
            used * BINS // self._loader.plan.settings.max_length, minlength=BINS + 1
        )
        self.num_spans += len(rows.spans)
        self.most_spans = max(self.most_spans, int(np.diff(rows.starts).max(initial=0)))
        while self._chosen_rows and self._chosen_rows[-1] < self._num_rows + rows.num_rows:
            number = self._chosen_rows.pop()
            row = self._positions.row(rows, number - self._num_rows)
            self.rows.append(DrawnRow(number=number, row=row, trained=self._trained_runs(row)))
        self._positions.add(rows)
        self._num_rows += rows.num_rows

    def samples(self) -> list[ShownSample]:
        """Return the chosen samples with their positions, after all rows were added."""
        return shown_samples(
            self._loader,
            self._choices,
            [self._positions.of(each.source, each.sample) for each in self._choices],
        )

    def _trained_runs(self, row: RowTrace) -> tuple[tuple[int, int], ...]:
        grain = -(-row.max_length // _RUNS)
        mask = np.zeros(-(-row.max_length // grain) * grain, np.bool_)
        for part in row.segments:
            own = self._stores[part.source][part.sample].loss_mask[part.start : part.stop]
            mask[part.place + 1 : part.place + len(own)] = own[
                1:
            ]  # the first token of a segment is not a target
        is_trained = mask.reshape(-1, grain).sum(axis=1) * 2 >= grain
        edges = (
            np.flatnonzero(np.diff(np.concatenate(([False], is_trained, [False])).astype(np.int8)))
            * grain
        )
        return tuple(
            (int(start), min(int(stop), row.max_length)) for start, stop in edges.reshape(-1, 2)
        )


def shown_samples(
    loader: Loader, choices: Sequence[Choice], landings: Sequence[tuple[Landing, ...] | None]
) -> list[ShownSample]:
    """Return samples for the page; `landings` are None if no epoch can be planned."""
    thumbnails = Thumbnails()
    return [
        _shown_sample(loader, each, at, thumbnails)
        for each, at in zip(choices, landings, strict=True)
    ]


def _shown_sample(
    loader: Loader, choice: Choice, landings: tuple[Landing, ...] | None, thumbnails: Thumbnails
) -> ShownSample:
    name, store = list(stores(loader).items())[choice.source]
    sample = store[choice.sample]
    left_out = max(len(sample) - HEAD - LAST_STEP, 0)
    shown = (slice(0, HEAD), slice(HEAD + left_out, None))
    if not len(sample):
        said = (
            f"{choice.why}, when prepared"
            if choice.why.startswith("dropped")
            else "it has no tokens"
        )
    else:
        said = "" if landings is None else outcome(loader.plan.settings, sample, landings, 0)
    record = trace_sample(store, sample, name, landings or (), said, shown)
    return ShownSample(
        choice=choice,
        record=record,
        num_tokens=len(sample),
        left_out=left_out,
        special=special_ids(store),
        pictures=thumbnails.of(store, sample),
    )


def special_ids(store: Store) -> frozenset[int]:
    """Return the ids of special tokens of a store's tokenizer."""
    tokenizer = getattr(store.template, "tokenizer", None)
    if tokenizer is None:
        return frozenset()
    added = (tokenizer.added_tokens[name] for name in tokenizer.special_added)
    return frozenset({*added, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id} - {None})


def trained_shares(store: Store) -> list[int]:
    """Count samples by the share of their tokens that are targets, in bins of 5 %; of up to MASKS_READ samples."""
    counts = [0] * BINS
    for row in spread(len(store), MASKS_READ):
        mask = store[row].loss_mask
        if mask.size:
            counts[min(int(np.count_nonzero(mask[1:]) * BINS / mask.size), BINS - 1)] += 1
    return counts

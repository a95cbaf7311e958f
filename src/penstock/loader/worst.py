"""The steps of a run that need the most memory, found without running to them."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PlanError
from penstock.loader.batch import Batch, has_media, media_of
from penstock.loader.tokens import TOKENS
from penstock.plan.plan import Step
from penstock.plan.ranks import dealt_rows
from penstock.plan.rows import Rows
from penstock.types import Ints

if TYPE_CHECKING:
    from penstock.loader.loader import Loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    """The batch of one rank that has the most of something."""

    step: int
    rank: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstStep:
    """Where a run needs the most memory: the batches with the most tokens, with the longest row, and with the most media."""

    tokens: Extreme  # of a batch, with its padding; packed rows are padded to one length, and count without it
    row: Extreme  # tokens of a row; of pairs, of both sequences, the shorter one padded
    media: Extreme | None  # images, videos and audio clips of a batch; None for data without
    num_steps: int  # that were looked at

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps in the order of a run, each once."""
        found = {each.step for each in (self.tokens, self.row, self.media) if each is not None}
        return tuple(sorted(found))


def find_worst_step(loader: "Loader") -> WorstStep:
    """Return the steps left of this pass whose batches have the most tokens, the longest row and the most media.

    Run them first, and an out-of-memory error comes now, not on day three.  It looks at the lengths of all samples that are left; in an
    endless run, at those of one epoch.
    """
    run = loader.run
    cursor = run.start_of_next_loop()
    search = _Search(loader)
    steps: Iterator[Step] = run.steps_from(cursor)
    if run.loop_end(cursor) is None and run.loop.max_steps is None:
        last = cursor.position.epoch + 1
        steps = run.plan.steps(start=cursor.position, num_rows=run.rows_per_step, epochs=last)
    for number, step in enumerate(steps, start=cursor.step):
        if number not in run.loop.skipped:
            search.look_at(number, step)
    return search.result()


def make_batch_of_step(loader: "Loader", step: int) -> Batch:
    """Return this rank's batch of a step, as worst_step() names it; the Loader stays where it is."""
    run = loader.run
    following = run.start_of_next_loop()
    if following.pass_step != run.cursor.pass_step:  # this pass is over: steps of the next one, too
        run = replace(run, cursor=following, anchors=(*run.anchors, following))
    run = run.at_step(step)
    pipeline = loader.parts.pipeline(run, loader.world, loader.added_stages)
    with closing(pipeline.batches(run, prefetch=0)) as batches:
        for batch, _ in islice(batches, 1):
            return batch
    raise PlanError(f"step {step} does not exist, or skip_steps= names it")


class _Search:
    """Keeps the largest batches that it was shown."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader
        self._has_media = any(has_media(store) for store in loader.stores)
        self._media: dict[tuple[int, int], int] = {}  # number of them in a sample
        self._num_steps = 0
        self._tokens: Extreme | None = None
        self._row: Extreme | None = None
        self._most_media: Extreme | None = None

    def look_at(self, number: int, step: Step) -> None:
        """Compare the batches of all ranks with the largest ones so far."""
        loader = self._loader
        settings = loader.plan.settings
        self._num_steps += 1
        dealt = dealt_rows(step.rows, loader.world.size, settings)
        is_padded = not (settings.method.is_packed or loader.form.padding_free)
        lengths = loader.plan.row_lengths(step.rows, is_padded=is_padded)[dealt]  # (ranks, rows)
        if is_padded:
            tokens = self._padded(lengths)
        else:
            tokens = self._flat(step.rows, lengths, dealt)
        self._tokens = _larger(self._tokens, number, tokens)
        self._row = _larger(self._row, number, lengths.max(axis=1, initial=0))
        if self._has_media:
            media = self._count_media(step.rows)[dealt].sum(axis=1)
            self._most_media = _larger(self._most_media, number, media)

    def _padded(self, lengths: Ints) -> Ints:
        """Return the tokens of each rank whose rows are padded to one length, from (ranks, rows) real tokens."""
        loader = self._loader
        plan = loader.plan
        form = loader.form
        count = plan.row_capacity // plan.settings.max_length  # sequences of a row
        longest = plan.settings.aligned(lengths.max(axis=1, initial=1) // count)
        if form.padding == "max_length":
            longest = np.full_like(longest, plan.settings.max_length)
        width = -(-longest // form.pad_to_multiple_of) * form.pad_to_multiple_of
        num_rows = np.full(len(lengths), lengths.shape[1], np.int64)
        if loader.kind != TOKENS.name:  # other batches hold no rows of padding
            num_rows = (lengths > 0).sum(axis=1)
        return np.asarray(width * num_rows * count)

    def _flat(self, rows: Rows, lengths: Ints, dealt: Ints) -> Ints:
        """Return the tokens of each rank whose rows follow each other, or are full."""
        form = self._loader.form
        if not form.padding_free:
            return np.asarray(lengths.sum(axis=1))
        sizes = self._loader.plan.settings.aligned(rows.spans["stop"] - rows.spans["start"])
        running = np.concatenate(([0], np.cumsum(sizes)))
        tokens = np.diff(running[rows.starts])[dealt].sum(axis=1)
        return np.asarray(-(-tokens // form.pad_to_multiple_of) * form.pad_to_multiple_of)

    def _count_media(self, rows: Rows) -> Ints:
        """Return the number of media in each row."""
        counts = np.zeros(rows.num_rows, np.int64)
        for row in range(rows.num_rows):
            pairs: Sequence[Any] = rows[row][["source", "sample"]].tolist()
            counts[row] = sum(self._media_of(source, sample) for source, sample in pairs)
        return counts

    def _media_of(self, source: int, sample: int) -> int:
        key = (source, sample)
        if key not in self._media:
            self._media[key] = len(media_of(self._loader.stores[source], sample))
        return self._media[key]

    def result(self) -> WorstStep:
        if self._tokens is None or self._row is None:
            raise PlanError("the run has no step left, so none of them is the worst")
        return WorstStep(
            tokens=self._tokens, row=self._row, media=self._most_media, num_steps=self._num_steps
        )


def _larger(best: Extreme | None, step: int, of_ranks: Ints) -> Extreme:
    """Return the largest batch, the first one among equals."""
    rank = int(of_ranks.argmax())
    amount = int(of_ranks[rank])
    if best is not None and best.amount >= amount:
        return best
    return Extreme(step=step, rank=rank, amount=amount)

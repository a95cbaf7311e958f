"""One batch as large as this Loader's batches can become, to see whether it fits into memory before a run begins."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PlanError
from penstock.loader.batch import Batch
from penstock.loader.stages import Made, Stage, output_stage, users_stage
from penstock.plan.plan import NumberedStep, Step
from penstock.plan.ranks import rank_shares
from penstock.plan.rows import Rows
from penstock.types import SPAN, World

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

_MOST_LOOKED_AT = 4096  # of the longest samples, to fill a row with samples that may not be cut


def make_full_batch(loader: "Loader") -> Batch:
    """Return a batch as large as this loader's can become: all rows are full, or without packing the longest sample.

    A step on it before a run begins shows whether the memory is enough.  The position stays.  With tokens_per_step, its rows are those
    of which a step holds the most tokens.
    """
    if not loader.has_tokens:
        raise PlanError(
            "plain records have no length that could be full: make a batch of your largest records with your collate"
        )
    if loader.parts.settings.objective is not None:
        raise PlanError(
            "full_batch fills rows with samples as they are stored, and this Loader's objective changes their lengths; make a Loader "
            "without the objective for it"
        )
    if loader.run.has_steps_of_tokens:
        row, num_rows = _rows_of_most_tokens(loader)
    else:
        row = _full_row(loader)
        num_rows = loader.batch_size
    spans = np.tile(row, num_rows)
    starts = np.arange(num_rows + 1, dtype=np.int64) * len(row)
    rows = Rows(spans, starts)
    [[(arrays, trained)]] = loader.parts.open_maker(loader.stores).many([rows])
    (share,) = rank_shares([rows], World(rank=0, size=1), loader.plan.settings)
    cursor = loader.run.cursor
    step = Step(
        rows=rows,
        epoch=cursor.position.epoch,
        num_real=rows.num_rows,
        after=cursor.position,
        ranges=(),
    )
    numbered = NumberedStep(number=cursor.step, step=step)
    made: Iterator[Made] = iter([Made(arrays, share, numbered, trained)])
    stages: list[Stage] = [*loader.added_stages, *loader.parts.stages.values()]
    if loader.settings.collate is not None:
        stages.append(users_stage(loader.settings.collate))
    stages.append(output_stage(loader.form))
    for stage in stages:
        made = stage(made)
    (whole,) = made
    return Batch(whole.arrays, share, loader.run.stores, numbered.number, whole.trained)


def _full_row(loader: "Loader") -> np.ndarray:
    """Return the spans of a row with as many tokens as a row of this Loader can have."""
    settings = loader.plan.settings
    samples = _longest(loader)
    left = loader.plan.row_capacity
    if settings.method.is_packed:
        left = settings.capacity
    most = left  # spans of a row
    if loader.form.max_segments is not None:  # of a batch, and what pads a row counts
        most = max(1, loader.form.max_segments // loader.batch_size - 1)
    can_be_cut = loader.parts.can_be_cut
    chosen: list[tuple[int, int, int, int]] = []
    turns = itertools.cycle(samples) if can_be_cut else iter(samples)
    for source, sample, whole in turns:
        length = min(whole, left) if can_be_cut else whole
        room = -(-length // settings.align) * settings.align
        if length <= left:
            chosen.append((source, sample, 0, length))
            left -= room
        if left <= 0 or len(chosen) >= most or settings.packing == "none":
            break  # without packing, a row is one sample
    return np.array(chosen, SPAN)


def _rows_of_most_tokens(loader: "Loader") -> tuple[np.ndarray, int]:
    """Return the spans of a row, and how many of it a rank gets, where tokens_per_step decides that."""
    budget = loader.plan.budget
    assert budget is not None
    assert budget.step is not None
    step_tokens = budget.step
    most = 0
    found = np.empty(0, SPAN)
    num_found = 0
    seen: set[int] = set()
    for source, sample, length in _longest(loader):
        stop = min(length, loader.plan.row_capacity)
        row = np.array([(source, sample, 0, stop)], SPAN)
        rows = Rows(row, np.array([0, 1], np.int64))
        tokens = loader.plan.row_lengths(rows, is_padded=step_tokens.is_padded)
        if int(tokens[0]) in seen:
            continue
        seen.add(int(tokens[0]))
        lengths = np.repeat(tokens, loader.run.rows_per_step)
        num_rows = step_tokens.num_rows(lengths) // loader.world.size
        of_rank = num_rows * int(step_tokens.padded(tokens)[0])
        if of_rank > most:
            most = of_rank
            found = row
            num_found = num_rows
    return found, num_found


def _longest(loader: "Loader") -> list[tuple[int, int, int]]:
    """Return the longest samples that fit, as (source, sample, tokens), the longest first; of pairs, those with the longest sequence."""
    settings = loader.plan.settings
    sources: list[Any] = []
    samples: list[Any] = []
    lengths: list[Any] = []
    keys: list[Any] = []  # of the order: lengths of their longest sequences
    for source, store in enumerate(loader.stores):
        longest = np.asarray(store.longest).astype(np.int64)
        fits = longest > 0
        if settings.on_overlong == "drop" or not loader.parts.can_be_cut:
            fits &= longest <= settings.max_length
        found = np.flatnonzero(fits)
        best = found[np.argsort(-longest[found], kind="stable")[:_MOST_LOOKED_AT]]
        keys.append(longest[best])
        sources.append(np.full(len(best), source, np.int64))
        samples.append(best)
        lengths.append(np.asarray(store.lengths).astype(np.int64)[best])
    all_lengths = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    if not len(all_lengths):
        raise PlanError(
            f"no sample has at most max_length={settings.max_length:,} tokens, so no batch can be made; raise max_length"
        )
    order = np.lexsort((-all_lengths, -np.concatenate(keys)))
    columns = (np.concatenate(sources), np.concatenate(samples), all_lengths)
    return list(zip(*(column[order].tolist() for column in columns), strict=True))

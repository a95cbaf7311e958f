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


def full_batch(loader: "Loader") -> Batch:
    """Return a batch whose rows are as long as rows can be: each is filled with the longest samples, or without packing is the longest."""
    if not loader.has_tokens:
        raise PlanError(
            "plain records have no length that could be full: make a batch of your largest records with your collate"
        )
    if loader.parts.settings.objective is not None:
        raise PlanError(
            "full_batch fills rows with samples as they are stored, and this Loader's objective changes their lengths; make a Loader "
            "without the objective for it"
        )
    row = _full_row(loader)
    spans = np.tile(row, loader.batch_size)
    starts = np.arange(loader.batch_size + 1, dtype=np.int64) * len(row)
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
    most = left  # spans of a row
    if loader.form.max_segments is not None:  # of a batch, and what pads a row counts
        most = max(1, loader.form.max_segments // loader.batch_size - 1)
    can_be_cut = loader.parts.can_be_cut
    chosen: list[tuple[int, int, int, int]] = []
    turns = itertools.cycle(samples) if can_be_cut else iter(samples)
    for source, sample, length in turns:
        room = -(-length // settings.align) * settings.align
        if can_be_cut:
            chosen.append((source, sample, 0, min(length, left)))
            left -= room
        elif length <= left:
            chosen.append((source, sample, 0, length))
            left -= room
        if left <= 0 or len(chosen) >= most or settings.packing == "none":
            break  # without packing, a row is one sample
    return np.array(chosen, SPAN)


def _longest(loader: "Loader") -> list[tuple[int, int, int]]:
    """Return the longest samples that fit, as (source, sample, tokens), the longest first."""
    settings = loader.plan.settings
    sources: list[Any] = []
    samples: list[Any] = []
    lengths: list[Any] = []
    for source, store in enumerate(loader.stores):
        longest = np.asarray(store.longest).astype(np.int64)
        fits = longest > 0
        if settings.on_overlong == "drop" or not loader.parts.can_be_cut:
            fits &= longest <= settings.max_length
        found = np.flatnonzero(fits)
        best = found[np.argsort(-longest[found], kind="stable")[:_MOST_LOOKED_AT]]
        sources.append(np.full(len(best), source, np.int64))
        samples.append(best)
        lengths.append(np.asarray(store.lengths).astype(np.int64)[best])
    all_lengths = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    if not len(all_lengths):
        raise PlanError(
            f"no sample has at most max_length={settings.max_length:,} tokens, so no batch can be made; raise max_length"
        )
    order = np.argsort(-all_lengths, kind="stable")
    columns = (np.concatenate(sources), np.concatenate(samples), all_lengths)
    return list(zip(*(column[order].tolist() for column in columns), strict=True))

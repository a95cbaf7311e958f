"""Batches of samples that are several sequences, of prompts and of judged steps: the arrays that trl's collators make.

What a store's samples are follows from its columns.  Every sequence becomes a row of its own, so no two of them see each other.  A row of
the plan that pads a last step holds no sample and gives no row here: the batch is shorter, as trl's last batch is.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.loader.collate import LOOKED_UP, Collator, Made, join_bits
from penstock.loader.columns import cut, span_values, view
from penstock.loader.kind import BatchSettings
from penstock.loader.run import Run
from penstock.plan.plan import Plan, Position
from penstock.plan.rows import Rows
from penstock.types import DESIRABLE, PROMPT_LENGTHS, SEQUENCE_LENGTHS, STEP_LABELS, Column, Ints

TOKENS = "tokens"
PAIRS = "pairs"
JUDGED = "judged answers"
PROMPTS = "prompts"
STEPS = "judged steps"

_FIXED = {  # options of a batch's layout that these batches do not have, with the only value that they take
    "padding_free": False,
    "labels": "unshifted",
    "attention_mask": "auto",
}


_OWN = (
    SEQUENCE_LENGTHS,
    DESIRABLE,
    PROMPT_LENGTHS,
    STEP_LABELS,
)  # columns that the arrays are made with


def check_sequences(kind: str, batch: BatchSettings) -> None:
    """Refuse settings under which sequences would see each other or be cut, or that would have no effect."""
    settings = batch.order
    form = batch.form
    for column in batch.columns:
        if column not in _OWN and column.per != "sample":
            raise PlanError(
                f"column {column.name!r} has values per {column.per}, but batches of {kind} can carry only columns per sample; "
                f"prepare the store without it"
            )
    if settings.packing != "none":
        raise PlanError(
            f"packing={settings.packing!r} packs several samples, but each sequence of {kind} needs its own row; pass packing='none'",
            code="packing_of_whole_rows",
        )
    for name, value in _FIXED.items():
        if (given := getattr(form, name)) != value:
            raise PlanError(f"{name}={given!r} has no effect on batches of {kind}; leave it out")
    if form.pad_side == "left" and kind != PROMPTS:
        raise PlanError(
            f"batches of {kind} are padded on the right, as trl's are; leave pad_side out"
        )
    if settings.on_overlong in ("truncate", "split"):
        raise PlanError(
            f"on_overlong={settings.on_overlong!r} would cut {kind}; choose on_overlong='drop', which counts them, or 'error'"
        )
    if settings.align != 1:
        raise PlanError(f"align={settings.align} has no effect on batches of {kind}; leave it out")
    if kind == JUDGED and batch.batch_size < 2:
        raise PlanError(
            "batch_size=1: KTO pairs each prompt with the answer of another row of the batch, but this batch has only one row; "
            "set batch_size to 2 or more"
        )


def check_tails(
    kind: str,
    plan: Plan,
    start: Position,
    end: int | None,
    *,
    per_step: int,
    world_size: int,
    is_incomplete: bool,
) -> None:
    """Refuse a padded last step that some rank could not train: trl's losses have no rows that count for nothing.

    start, end: position and epoch between which the pass is.
    """
    last_step = plan.settings.last_step
    if (
        kind in (TOKENS, PROMPTS)
        or last_step not in ("pad", "wrap")
        or (last_step == "wrap" and end is None)
    ):
        return
    if is_incomplete:
        raise PlanError(
            f"last_step={last_step!r}: the store of {kind} is still being made, so the number of rows in the last step is not known; "
            f"choose last_step='drop' or 'repeat', or wait for the whole store: store.wait()"
        )
    for part in plan.parts(per_step, end or start.epoch + 1, start):
        left = (part.carried + part.num_rows) % per_step
        least = 2 if kind == JUDGED else 1  # as `least_rows` of the kind
        is_last = last_step == "pad" or part.epoch + 1 == end
        if is_last and left and (left % world_size or left // world_size < least):
            ranks = f" on {world_size} ranks" if world_size > 1 else ""
            raise PlanError(
                f"last_step={last_step!r}: the last step has {left:,} of {per_step:,} rows{ranks}; for {kind}, every "
                f"rank must get the same "
                f"number of rows, at least {least}; choose last_step='drop' (drops these rows and counts them) or last_step='repeat'",
                code="uneven_ranks",
            )


class Sequences:
    """A kind of samples that are whole sequences, each a row of its own."""

    row_sequences = 1
    has_tokens = True
    usual_settings: Mapping[str, Any] = MappingProxyType({"packing": "none"})

    def __init__(self, name: str) -> None:
        self.name = name
        self.least_rows = 2 if name == JUDGED else 1

    def matches(self, columns: Sequence[Column]) -> bool:
        """Whether samples with these columns are of this kind."""
        if SEQUENCE_LENGTHS in columns:
            name = JUDGED if DESIRABLE in columns else PAIRS
        elif PROMPT_LENGTHS in columns:
            name = PROMPTS
        else:
            name = STEPS if STEP_LABELS in columns else ""
        return name == self.name

    def can_be_cut(self, columns: Sequence[Column]) -> bool:
        """A sequence cannot be cut."""
        return False

    def check(self, settings: BatchSettings) -> None:
        """Refuse settings under which sequences would see each other or be cut, or that would have no effect."""
        check_sequences(self.name, settings)

    def check_tail(self, run: Run, *, world_size: int) -> None:
        """Refuse a padded last step that some rank could not train: trl's losses have no rows that count for nothing."""
        anchor = run.anchors[-1]
        if self.name != PROMPTS:
            check_tails(
                self.name,
                run.plan,
                anchor.position,
                run.pass_end(anchor),
                per_step=run.rows_of_full_step,
                world_size=world_size,
                is_incomplete=run.is_incomplete,
            )

    def steps_at_once(self, stores: Sequence[Any], settings: BatchSettings) -> int:
        return LOOKED_UP // (settings.batch_size * settings.order.max_length)

    def maker(self, stores: Sequence[Any], settings: BatchSettings) -> "SequenceCollator":
        return SequenceCollator(self.name, stores, settings)


class Pairs(Sequences):
    """A row of the plan holds both sequences of a pair."""

    row_sequences = 2


class SequenceCollator(Collator):
    """Rows → the arrays of pairs, judged answers, prompts or judged steps.  For one thread."""

    def __init__(self, kind: str, stores: Sequence[Any], settings: BatchSettings) -> None:
        columns = settings.columns
        super().__init__(stores, settings.order, settings.form, columns)
        self._max_length = settings.order.max_length
        self._others = [
            column for column in columns if column not in _OWN
        ]  # one value per sample, such as a margin
        self._kind = kind
        self._make_arrays = {
            PAIRS: self._pairs,
            JUDGED: self._judged,
            PROMPTS: self._prompts,
            STEPS: self._steps,
        }

    def many(self, steps: Sequence[Rows]) -> Iterator[list[Made]]:
        """Yield the arrays of several steps, one at a time."""
        for rows in steps:
            spans = _Spans(self, rows)
            arrays, trained = self._make_arrays[self._kind](spans)
            arrays |= {column.name: spans.values(column) for column in self._others}
            yield [(arrays, trained)]

    def _pairs(self, spans: "_Spans") -> Made:
        """(2 B, L): the chosen sequences, then the rejected ones."""
        lengths = spans.sequence_lengths(2)
        starts = np.stack((spans.starts, spans.starts + lengths[:, 0]))  # (2, B)
        arrays = spans.lay_out(
            np.tile(spans.shards, 2), starts.ravel(), (starts + lengths.T).ravel()
        )
        return arrays, _num_targets(arrays["completion_mask"])

    def _judged(self, spans: "_Spans") -> Made:
        """(B, L), and each prompt with the answer of the row before it, for KTO's estimate of the KL divergence."""
        spans.sequence_lengths(1)
        arrays = spans.lay_out(spans.shards, spans.starts, spans.stops)
        trained = _num_targets(arrays["completion_mask"])
        answers = arrays["completion_mask"].sum(axis=1)
        borders = spans.stops - answers  # an answer is the end of its sequence
        before = np.roll(np.arange(len(answers)), 1)
        prompts = (spans.shards, spans.starts, borders)
        # as trl, which cuts these mismatched sequences at max_length
        room = self._max_length - (borders - spans.starts)
        others = (
            spans.shards[before],
            borders[before],
            borders[before] + np.minimum(answers[before], room),
        )
        mismatched = spans.lay_out(
            *(np.stack(parts, axis=1).ravel() for parts in zip(prompts, others, strict=True)),
            parts=2,
        )
        arrays |= {f"KL_{name}": value for name, value in mismatched.items()}
        arrays["label"] = spans.values(DESIRABLE).astype(np.bool_)
        return arrays, trained

    def _prompts(self, spans: "_Spans") -> Made:
        arrays = spans.lay_out(spans.shards, spans.starts, spans.stops)
        del arrays["completion_mask"]
        return arrays, 0

    def _steps(self, spans: "_Spans") -> Made:
        """The label of a step stands at its last token; all others are ignored.  Labels are not shifted: the model classifies tokens."""
        arrays = spans.lay_out(spans.shards, spans.starts, spans.stops, column=STEP_LABELS)
        del arrays["completion_mask"]
        arrays["labels"] = arrays.pop(STEP_LABELS.name).astype(np.int64)
        return arrays, int(np.count_nonzero(arrays["labels"] != STEP_LABELS.fill))


def _num_targets(mask: npt.NDArray[Any]) -> int:
    """Trained tokens, without the first of each row, which nothing predicts."""
    return int(np.count_nonzero(mask[:, 1:]))


class _Spans:
    """The samples of a step: in which shard the tokens of each begin and end, and how slices of them become padded rows."""

    def __init__(self, collator: SequenceCollator, rows: Rows) -> None:
        spans = rows.spans
        self._collator = collator
        self._count = len(spans)
        self._samples = spans["sample"]
        sizes = spans["stop"] - spans["start"]
        self._found = collator._find(rows, np.ones(len(spans), np.bool_), sizes)
        self.shards, self.starts, self.stops = self._found[-1]  # (num_spans,); shard 0 is padding

    def values(self, column: Column) -> npt.NDArray[Any]:
        """Return a column's values per sample, or those of its lists end to end."""
        return span_values(column, self._found[0], self._count)[0]

    def sequence_lengths(self, count: int) -> Ints:
        """Return the lengths of each sample's sequences, (num_spans, count); refuse samples that have another number of them."""
        lengths, offsets = span_values(SEQUENCE_LENGTHS, self._found[0], self._count)
        is_right = (np.diff(offsets) == count).all()
        found = (
            lengths.astype(np.int64).reshape(-1, count)
            if is_right
            else np.zeros((self._count, count), np.int64)
        )
        wrong = np.flatnonzero(found.sum(axis=1) != self.stops - self.starts)
        if wrong.size:
            sample = int(self._samples[wrong[0]])
            raise PlanError(
                f"sample {sample}: sequence_lengths must be {count} lengths whose sum is the number of its tokens; fix the template "
                f"that declares them"
            )
        return found

    def lay_out(
        self,
        shards: Ints,
        starts: Ints,
        stops: Ints,
        *,
        parts: int = 1,
        column: Column | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return slices of tokens as padded rows of `parts` slices each: ids, both masks and a column per token."""
        form = self._collator._form
        collator = self._collator
        lengths = (stops - starts).reshape(-1, parts).sum(axis=1)
        width = -(-int(lengths.max(initial=1)) // form.pad_to_multiple_of) * form.pad_to_multiple_of
        if form.padding == "max_length":
            width = max(
                width, -(-collator._max_length // form.pad_to_multiple_of) * form.pad_to_multiple_of
            )
        place = np.arange(width)
        is_token = place < lengths[:, None]
        if form.pad_side == "left":
            is_token = is_token[:, ::-1]
        _, ids, bits, _, _ = self._found
        made = {
            "input_ids": np.full(is_token.shape, form.pad_token_id, np.int64),
            "attention_mask": is_token.astype(np.int64),
            "completion_mask": np.zeros(is_token.shape, np.int64),
        }
        pieces = [np.asarray(piece) for piece in cut(ids, shards, starts, stops)]
        made["input_ids"][is_token] = np.concatenate(pieces) if pieces else 0
        made["completion_mask"][is_token] = join_bits(bits, shards, starts, stops)
        if column is not None:
            found = [tokens.columns[column.name].values for tokens, *_ in self._found[0]]
            values = [
                np.asarray(piece)
                for piece in cut(
                    [view(np.zeros(0, column.dtype)), *map(view, found)], shards, starts, stops
                )
            ]
            made[column.name] = np.full(is_token.shape, column.fill, column.dtype)
            made[column.name][is_token] = np.concatenate(values) if values else 0
        return made


PAIRS_KIND = Pairs(PAIRS)
JUDGED_KIND = Sequences(JUDGED)
PROMPTS_KIND = Sequences(PROMPTS)
STEPS_KIND = Sequences(STEPS)

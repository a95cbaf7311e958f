"""Span corruption, as T5 is trained: parts of a text are replaced by sentinels, and the target says what stood there.

    inputs    Thank you <extra_id_0> me to your party <extra_id_1> week EOS
    targets   <extra_id_0> for inviting <extra_id_1> last EOS

How long both are follows from the number of tokens alone, so the plan needs no text to know it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.extras.objectives.changed import (
    ChangedSample,
    ObjectiveOfStores,
    Stored,
    edges,
    ids_around_texts,
    refuse_in_text,
    tokenizers_of,
)
from penstock.extras.objectives.noise import draws_of
from penstock.extras.objectives.settings import SpanCorruptionSettings
from penstock.loader.collate import IGNORE
from penstock.loader.stages import Made, close
from penstock.plan.rows import Rows
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Bools, Column, Ids, Ints

# How many tokens of a sample are its inputs; the rest is its targets.
INPUT_TOKENS = Column(name="input_tokens", dtype="int32", per="sample")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How many tokens of a text are removed, in how many spans."""

    removed: int
    spans: int


class SpanCorruption(ObjectiveOfStores):
    """T5's objective."""

    name = "span_corruption"

    def __init__(
        self,
        settings: SpanCorruptionSettings,
        *,
        seed: int,
        names: Sequence[str],
        stores: Sequence[Any],
    ) -> None:
        super().__init__(seed=seed, names=names, stores=stores)
        self._settings = settings
        self.refuse_untrained()
        tokenizers = tokenizers_of(self.name, names, stores)
        self._special = [ids_around_texts(tokenizer) for tokenizer in tokenizers]
        self._sentinels = [
            _sentinels(name, tokenizer, settings.sentinels)
            for name, tokenizer in zip(names, tokenizers, strict=True)
        ]
        self._ends = [_end(tokenizer) for tokenizer in tokenizers]
        if settings.layout == "encoder_decoder":
            self.columns = (INPUT_TOKENS,)

    def has_target(
        self, source: int, samples: Ints, passes: Ints, starts: Ints, stops: Ints
    ) -> Bools:
        raise AssertionError("no sample is cut")

    def change_one(self, stored: Stored) -> ChangedSample:
        self.refuse_untrained_sample(stored)
        begin, end = edges(stored.input_ids, self._special[stored.store])
        text = stored.input_ids[begin:end]
        is_removed = self._removed(stored, text.size)
        sentinels = self._sentinels[stored.store]
        refuse_in_text(self, stored, sentinels, "a sentinel")
        last = self._ends[stored.store]
        behind = stored.input_ids[end:]
        if not np.array_equal(behind[-1:], last):
            behind = np.concatenate([behind, last])
        inputs = np.concatenate(
            [stored.input_ids[:begin], _with_sentinels(text, is_removed, sentinels), behind]
        )
        # the first span of a text is kept, so the targets begin with a sentinel
        targets = np.concatenate([_with_sentinels(text, ~is_removed, sentinels), last])
        mask = np.zeros(inputs.size + targets.size, np.bool_)
        mask[inputs.size :] = True
        columns = {column.name: np.array([inputs.size]) for column in self.columns}
        return ChangedSample(np.concatenate([inputs, targets]).astype(np.uint32), mask, columns)

    def _removed(self, stored: Stored, num_tokens: int) -> Bools:
        """Return which tokens of a text are removed: kept and removed spans in turn, the first one kept, of random lengths."""
        sizes = self._sizes(num_tokens)
        self._refuse_many(stored, num_tokens, sizes.spans)
        kept_draws = draws_of(stored.key, num_tokens)
        removed_draws = draws_of(stored.key, num_tokens, first=num_tokens)
        removed = _segments(sizes.removed, sizes.spans, removed_draws)
        kept = _segments(num_tokens - sizes.removed, sizes.spans, kept_draws)
        in_turn = np.stack((kept, removed), axis=1).ravel()
        return np.repeat(np.arange(in_turn.size) % 2 == 1, in_turn)

    def _sizes(self, num_tokens: int) -> _Sizes:
        settings = self._settings
        if num_tokens < 2:
            return _Sizes(0, 0)
        removed = min(max(round(num_tokens * settings.noise_density), 1), num_tokens - 1)
        spans = max(round(removed / settings.mean_span_length), 1)
        return _Sizes(removed, min(spans, removed, num_tokens - removed))

    def _refuse_many(self, stored: Stored, num_tokens: int, spans: int) -> None:
        there = len(self._sentinels[stored.store])
        if spans <= there:
            return
        raise PlanError(
            f"{self.where(stored)}a text of {num_tokens:,} tokens would have {spans:,} gaps, and the tokenizer of "
            f"{self.names[stored.store]!r} has {there:,} sentinels ({self._settings.sentinels}); cut the texts into shorter records, or "
            f"raise mean_span_length"
        )


def _with_sentinels(text: Ids, is_gap: Bools, sentinels: Ids) -> npt.NDArray[Any]:
    """Return a text with one sentinel in the place of each gap."""
    begins = is_gap & ~np.concatenate(([False], is_gap[:-1]))
    replaced = text.copy()
    replaced[begins] = sentinels[: np.count_nonzero(begins)]
    return replaced[~is_gap | begins]


def _segments(num_tokens: int, count: int, order: npt.NDArray[np.float64]) -> Ints:
    """Cut so many tokens into `count` segments of at least one token: every way to do it is equally likely."""
    if not count:
        return np.zeros(0, np.int64)
    places = np.argsort(order[: num_tokens - 1], kind="stable")[: count - 1]
    borders = np.sort(places) + 1
    return np.diff(np.concatenate(([0], borders, [num_tokens]))).astype(np.int64)


def _sentinels(name: str, tokenizer: Tokenizer, pattern: str) -> Ids:
    """Return the ids of the sentinels 0, 1, …; refuse a tokenizer that has none."""
    found: list[int] = []
    while (token := pattern.format(len(found))) in tokenizer.added_tokens:
        found.append(tokenizer.added_tokens[token])
    if not found:
        raise PlanError(
            f"objective 'span_corruption' needs sentinel tokens, and the tokenizer of {name!r} ({tokenizer.path or 'an object'}) has no "
            f"added token {pattern.format(0)!r}; name yours, as sentinels: '<gap_{{}}>', or add tokens to the tokenizer and prepare again"
        )
    return np.array(found, np.uint32)


def _end(tokenizer: Tokenizer) -> Ids:
    """Return the token that ends inputs and targets, if the tokenizer has one."""
    end = tokenizer.eos_id
    return np.array([] if end is None else [end], np.uint32)


def make_span_corruption(
    settings: SpanCorruptionSettings,
    *,
    seed: int,
    names: Sequence[str],
    stores: Sequence[Any],
    run: Any,
) -> SpanCorruption:
    """Open the objective; refuse orders that would cut a sample between its inputs and its targets."""
    cuts = f"packing={run.packing!r}" if run.method.cuts else f"on_overlong={run.on_overlong!r}"
    if run.method.cuts or run.on_overlong in ("truncate", "split"):
        raise PlanError(
            f"objective 'span_corruption' makes inputs and targets of a whole sample, and {cuts} would cut them; choose "
            f"on_overlong='drop' or 'error' and another packing, and cut long texts into records before, with source.map(batched=True)"
        )
    if settings.layout == "encoder_decoder" and run.packing != "none":
        raise PlanError(
            f"layout='encoder_decoder' has one sample in a row, and packing={run.packing!r} would put several there; choose "
            f"packing='none', or layout='joined'"
        )
    return SpanCorruption(settings, seed=seed, names=names, stores=stores)


# Batches of an encoder and a decoder


@dataclass(frozen=True, slots=True)
class EncoderDecoderStage:
    """Makes `input_ids` and `labels` of rows that hold inputs and targets."""

    pad_token_id: int
    multiple: int

    def __call__(self, made: Iterator[Made]) -> Iterator[Made]:
        try:
            for each in made:
                arrays, trained = self._split(each.arrays, each.share.rows)
                yield each._replace(arrays=arrays, trained=trained)
        finally:
            close(made)

    def counts(self) -> dict[str, int]:
        return {}

    def _split(self, arrays: Mapping[str, Any], rows: Rows) -> tuple[dict[str, Any], int]:
        """Return the arrays of rows that hold one sample each, or none."""
        ids = arrays["input_ids"]
        has_sample = np.diff(rows.starts) > 0
        lengths = np.zeros(rows.num_rows, np.int64)
        lengths[has_sample] = rows.spans["stop"] - rows.spans["start"]
        sizes = np.zeros(rows.num_rows, np.int64)
        sizes[has_sample] = arrays[INPUT_TOKENS.name]
        inputs = self._rows(ids, np.zeros_like(sizes), sizes, self.pad_token_id)
        labels = self._rows(ids, sizes, lengths, IGNORE)
        places = np.arange(inputs.shape[1])
        kept = {"input_ids", "labels", "position_ids", "seq_idx", "attention_mask"}
        others = {name: value for name, value in arrays.items() if name not in kept}
        del others[INPUT_TOKENS.name]
        split = {
            **others,
            "input_ids": inputs,
            "attention_mask": (places < sizes[:, None]).astype(np.int64),
            "labels": labels,
        }
        return split, int(np.count_nonzero(labels != IGNORE))

    def _rows(self, ids: Ints, starts: Ints, stops: Ints, fill: int) -> Ints:
        """Return tokens start..stop of each row, padded."""
        longest = max(int((stops - starts).max(initial=1)), 1)
        width = -(-longest // self.multiple) * self.multiple
        rows = np.full((len(ids), width), fill, np.int64)
        for row, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            rows[row, : stop - start] = ids[row, start:stop]
        return rows


class EncoderDecoderColumn:
    """The plugin of the group `stages`: rows with inputs and targets become batches of an encoder and a decoder."""

    column = INPUT_TOKENS
    arrays: frozenset[str] = frozenset()

    def open(
        self, names: Sequence[str], stores: Sequence[Any], settings: Mapping[str, Any]
    ) -> EncoderDecoderStage:
        for key, expected in _LAYOUT.items():
            if settings[key] != expected:
                raise PlanError(
                    f"layout='encoder_decoder' pads inputs and labels by themselves, and {key}={settings[key]!r} is for single "
                    f"sequences; leave it out"
                )
        return EncoderDecoderStage(settings["pad_token_id"], settings["pad_to_multiple_of"])


_LAYOUT = {
    "padding": "longest",
    "padding_free": False,
    "pad_side": "right",
    "labels": "unshifted",
    "attention_mask": "auto",
}
ENCODER_DECODER = EncoderDecoderColumn()

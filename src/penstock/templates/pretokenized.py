"""What if the tokens are there already?  They are checked and taken, with their labels or masks; nothing is added."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.keys import value_under
from penstock.templates.samples import POLICIES, Tokens, check_choice, encode_batches
from penstock.templates.tokenizers import Tokenizer
from penstock.types import Bools, Ids, Record, Samples

MASKS = ("loss_mask", "assistant_masks", "completion_mask")


class PretokenizedTemplate:
    """`input_ids`, trained where `labels` are not -100, or where a mask is 1, or everywhere.

    mask_key: the one mask to take; None takes what is there of `labels`, loss_mask, assistant_masks, completion_mask.
    Of those, assistant_masks and completion_mask together mean both (as in trl); any others must agree.
    vocab_size: needed without a tokenizer; ids are checked against it.
    """

    version = 1  # raise when the same record gives other tokens

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        input_key: str = "input_ids",
        labels_key: str = "labels",
        mask_key: str | None = None,
        ignore_index: int = -100,
        vocab_size: int | None = None,
        on_nothing: str = "drop",
    ) -> None:
        size = vocab_size if vocab_size is not None else tokenizer.vocab_size if tokenizer else None
        if size is None or size < 1:
            raise TemplateError(
                f"vocab_size is {size}, expected how many ids the vocabulary has, or a tokenizer that knows it"
            )
        self.tokenizer = tokenizer
        self.vocab_size = size
        self.input_key = input_key
        self.labels_key = labels_key
        self.mask_key = mask_key
        self.ignore_index = ignore_index
        self.on_nothing = check_choice("on_nothing", on_nothing, POLICIES)

    def identity(self) -> dict[str, Any]:
        """Without the tokenizer: it decodes, but changes no token."""
        return {
            "template": "pretokenized",
            "version": self.version,
            "input_key": self.input_key,
            "labels_key": self.labels_key,
            "mask_key": self.mask_key,
            "ignore_index": self.ignore_index,
            "vocab_size": self.vocab_size,
        }

    def encode(self, records: Iterable[Record]) -> Samples:
        return encode_batches(records, self._encode, on_nothing=self.on_nothing)

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        if self.tokenizer is None:
            raise TemplateError(
                "these samples came as ids and no tokenizer was given; pass tokenizer= to read them as text"
            )
        return self.tokenizer.decode(input_ids)

    def _encode(self, records: Sequence[Record]) -> Tokens:
        ids, masks = [], []
        for number, record in enumerate(records):
            try:
                ids.append(self._ids(record))
                masks.append(self._mask(record, ids[-1]))
            except TemplateError as error:
                raise TemplateError(str(error), record=number) from error
        lengths = np.array([len(some) for some in ids], np.int64)
        return Tokens(ids=np.concatenate(ids), mask=np.concatenate(masks), lengths=lengths)

    def _ids(self, record: Record) -> Ids:
        given = value_under(record, self.input_key, "input_key", expected="a list of ids")
        return read_ids(given, f"key {self.input_key!r}", self.vocab_size)

    def _mask(self, record: Record, ids: Ids) -> Bools:
        self._check_attention(record, ids)
        if self.mask_key is not None:
            return read_mask(value_under(record, self.mask_key, "mask_key"), f"key {self.mask_key!r}", len(ids))
        found = {key: read_mask(record[key], f"key {key!r}", len(ids)) for key in MASKS if record.get(key) is not None}
        if "assistant_masks" in found and "completion_mask" in found:
            found["assistant_masks and completion_mask"] = found.pop("assistant_masks") & found.pop("completion_mask")
        if record.get(self.labels_key) is not None:
            found[self.labels_key] = self._labels(record, ids)
        if not found:
            return np.ones(len(ids), np.bool_)
        (name, mask), *others = found.items()
        for other, value in others:
            if not np.array_equal(mask, value):
                raise TemplateError(
                    f"{name!r} and {other!r} disagree at {int((mask != value).sum())} of {len(ids)} tokens; "
                    f"choose one with mask_key="
                )
        return mask

    def _labels(self, record: Record, ids: Ids) -> Bools:
        what = f"key {self.labels_key!r}"
        labels = _integers(record[self.labels_key], what)
        if len(labels) != len(ids):
            raise TemplateError(f"{what} has {len(labels)} labels for {len(ids)} ids, expected one each")
        trained = np.asarray(labels != self.ignore_index, np.bool_)
        wrong = np.flatnonzero(trained & (labels != ids))
        if len(wrong):
            place = int(wrong[0])
            shifted = trained[:-1].any() and np.array_equal(labels[:-1][trained[:-1]], ids[1:][trained[:-1]])
            hint = (
                "they look shifted by one already, but shifting is the loader's work: give them unshifted"
                if shifted
                else (f"expected the id itself, or {self.ignore_index} where nothing is trained")
            )
            raise TemplateError(
                f"{what} differs from the ids at {len(wrong)} places, first at {place}: label {labels[place]}, "
                f"id {ids[place]}; {hint}"
            )
        return trained

    def _check_attention(self, record: Record, ids: Ids) -> None:
        attention = record.get("attention_mask")
        if attention is None:
            return
        seen = read_mask(attention, "key 'attention_mask'", len(ids))
        if not seen.all():
            raise TemplateError(
                f"key 'attention_mask' has {int((~seen).sum())} zeros among {len(ids)}, expected only ones: samples are "
                f"stored without padding; take the padding off"
            )

    def __repr__(self) -> str:
        return f"PretokenizedTemplate({self.input_key!r}, {self.vocab_size:_} ids)"


def read_ids(value: Any, what: str, vocab_size: int) -> Ids:
    ids = _integers(value, what)
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < vocab_size):
        place = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise TemplateError(f"{what} holds {ids[place]} at place {place}, expected 0 <= id < {vocab_size} (vocab_size)")
    return ids.astype(np.uint32, copy=False)


def read_mask(value: Any, what: str, length: int) -> Bools:
    mask = np.asarray(value)
    if mask.size and mask.dtype != np.bool_:
        numbers = _integers(value, what)
        if not np.isin(numbers, (0, 1)).all():
            raise TemplateError(
                f"{what} holds {numbers[~np.isin(numbers, (0, 1))][0]}, expected 0 and 1, or true and false"
            )
        mask = numbers != 0
    if mask.shape != (length,):
        raise TemplateError(f"{what} has the shape {mask.shape} for {length} ids, expected one value each")
    return mask.astype(np.bool_, copy=False)


def _integers(value: Any, what: str) -> npt.NDArray[np.integer[Any]]:
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths in a list
        numbers = np.asarray(None)
    if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
        found = f"{type(value).__name__} of {numbers.dtype} with {numbers.ndim} dimensions"
        raise TemplateError(f"{what} is a {found}, expected a flat list of integers")
    return numbers if numbers.size else np.zeros(0, np.int64)

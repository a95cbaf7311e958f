"""Records that are tokens already: ids, labels and masks are checked and used as they are."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.fields import check_choice, value_under
from penstock.templates.samples import POLICIES, BatchTemplate, OnNothing, read_each
from penstock.templates.tokenizer.byte_offsets import borders
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Bools, Ids, Record, Samples

_MASKS = ("loss_mask", "assistant_masks", "completion_mask")
_OPTIONS = ("version", "input_key", "labels_key", "mask_key", "ignore_index", "vocab_size")


class PretokenizedTemplate(BatchTemplate):
    """`input_ids`, trained where `labels` are not -100, or where a mask is 1, or everywhere.

    mask_key: the one mask to use; None uses all that a record has of `labels`, loss_mask, assistant_masks and completion_mask.
    Of those, assistant_masks and completion_mask together mean both (as in trl); any others must agree.
    vocab_size: needed without a tokenizer; ids are checked against it.
    """

    version = 1  # raise when the same record gives other tokens

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        input_key: Annotated[str, "column with the ids"] = "input_ids",
        labels_key: Annotated[str, "column with the labels of the ids"] = "labels",
        mask_key: Annotated[
            str | None,
            "column with the loss mask; null finds labels, loss_mask, assistant_masks or completion_mask",
        ] = None,
        ignore_index: Annotated[int, "label of tokens that are not trained"] = -100,
        vocab_size: Annotated[int | None, "number of ids, if no tokenizer is given"] = None,
        on_nothing: OnNothing = "drop",
    ) -> None:
        size = vocab_size if vocab_size is not None or tokenizer is None else tokenizer.vocab_size
        if size is None or size < 1:
            expected = "the size of the vocabulary, or a tokenizer that has it"
            raise TemplateError(f"vocab_size is {size}, expected {expected}")
        self.tokenizer = tokenizer
        self.vocab_size = size
        self.input_key = input_key
        self.labels_key = labels_key
        self.mask_key = mask_key
        self.ignore_index = ignore_index
        self.on_nothing = check_choice("on_nothing", on_nothing, POLICIES)

    def identity(self) -> dict[str, Any]:
        """Without the tokenizer: it decodes, but changes no token."""
        return {"template": "pretokenized", **{name: getattr(self, name) for name in _OPTIONS}}

    def _encode(self, records: Sequence[Record]) -> Samples:
        return self.encode_all(records)

    def encode_all(self, records: Sequence[Record]) -> Samples:
        """Encode a batch of records, and keep the tokens of those without a target."""
        read = read_each(self._read, records)
        ids = np.concatenate([ids for ids, _ in read])
        masks = np.concatenate([mask for _, mask in read])
        return Samples(
            input_ids=ids, loss_mask=masks, offsets=borders([len(ids) for ids, _ in read])
        )

    def _read(self, record: Record) -> tuple[Ids, Bools]:
        given = value_under(record, self.input_key, "input_key", expected="a list of ids")
        ids = _integers(given, f"key {self.input_key!r}")
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.vocab_size):
            place = int(np.flatnonzero((ids < 0) | (ids >= self.vocab_size))[0])
            found = f"key {self.input_key!r} holds {ids[place]} at place {place}"
            raise TemplateError(f"{found}, expected 0 <= id < {self.vocab_size} (vocab_size)")
        made = ids.astype(np.uint32, copy=False)
        return made, self._mask(record, made)

    def _mask(self, record: Record, ids: Ids) -> Bools:
        self._check_attention(record, ids)
        if self.mask_key is not None:
            return _read_mask(
                value_under(record, self.mask_key, "mask_key"), self.mask_key, len(ids)
            )
        found = {
            key: _read_mask(record[key], key, len(ids))
            for key in _MASKS
            if record.get(key) is not None
        }
        if "assistant_masks" in found and "completion_mask" in found:
            found["assistant_masks and completion_mask"] = found.pop("assistant_masks") & found.pop(
                "completion_mask"
            )
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
            raise TemplateError(
                f"{what} has {len(labels)} labels for {len(ids)} ids, expected one each"
            )
        trained = np.asarray(labels != self.ignore_index, np.bool_)
        wrong = np.flatnonzero(trained & (labels != ids))
        if len(wrong):
            place = int(wrong[0])
            hint = f"expected the id itself, or {self.ignore_index} where nothing is trained"
            if trained[:-1].any() and np.array_equal(
                labels[:-1][trained[:-1]], ids[1:][trained[:-1]]
            ):
                hint = "they look shifted by one already, but the loader shifts labels: give them unshifted"
            raise TemplateError(
                f"{what} differs from the ids at {len(wrong)} places, first at {place}: label {labels[place]}, "
                f"id {ids[place]}; {hint}"
            )
        return trained

    def _check_attention(self, record: Record, ids: Ids) -> None:
        if record.get("attention_mask") is None:
            return
        zeros = int((~_read_mask(record["attention_mask"], "attention_mask", len(ids))).sum())
        if zeros:
            raise TemplateError(
                f"key 'attention_mask' has {zeros} zeros among {len(ids)}, expected only ones: samples are stored without "
                f"padding; remove the padding"
            )

    def __repr__(self) -> str:
        return f"PretokenizedTemplate({self.input_key!r}, {self.vocab_size:,} ids)"


def _read_mask(value: Any, key: str, length: int) -> Bools:
    mask = np.asarray(value)
    if mask.size and mask.dtype != np.bool_:
        numbers = _integers(value, f"key {key!r}")
        others = numbers[~np.isin(numbers, (0, 1))]
        if len(others):
            raise TemplateError(
                f"key {key!r} holds {others[0]}, expected 0 and 1, or true and false"
            )
        mask = numbers != 0
    if mask.shape != (length,):
        raise TemplateError(
            f"key {key!r} has the shape {mask.shape} for {length} ids, expected one value each"
        )
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

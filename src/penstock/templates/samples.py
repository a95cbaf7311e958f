"""How do batches of tokens become samples?  Joined flat, and those with nothing to train dropped by name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np

from penstock.errors import TemplateError
from penstock.types import Bools, Ids, Ints, Record, Samples, join_notes

NOTHING_TO_TRAIN = "nothing_to_train"
POLICIES = ("drop", "stop")  # of on_nothing: leave out and count, or stop
SPECIAL = ("token", "text", "error")  # of special_in_text: what a special token in a text becomes

_BATCH = 1024  # records encoded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Some texts encoded, flat: text i is `ids[sum(lengths[:i]):][:lengths[i]]`."""

    ids: Ids
    mask: Bools  # as long as ids
    lengths: Ints
    dropped: dict[int, str] = field(default_factory=dict)  # text → reason, where that is known; such a text has no ids
    notes: dict[str, dict[int, int]] = field(default_factory=dict)  # what was noticed → text → characters
    assistant_characters: int = 0


Choice = TypeVar("Choice", bound=str)


def check_choice(option: str, value: Choice, known: Sequence[str]) -> Choice:
    if value not in known:
        raise TemplateError(f"{option}={value!r} is not known, expected one of {', '.join(map(repr, known))}")
    return value


def encode_batches(
    records: Iterable[Record], encode: Callable[[Sequence[Record]], Tokens], *, on_nothing: str
) -> Samples:
    """Samples of all records; an error of `encode` names a record by its number in the batch."""
    parts: list[Tokens] = []
    first = 0
    for batch in batches(records):
        try:
            parts.append(encode(batch))
        except TemplateError as error:
            raise TemplateError(str(error), record=None if error.record is None else first + error.record) from error
        first += len(batch)
    return join(parts, on_nothing=on_nothing)


def batches(records: Iterable[Record], size: int = _BATCH) -> Iterator[list[Record]]:
    rest = iter(records)
    while batch := list(islice(rest, size)):
        yield batch


def join(parts: Sequence[Tokens], *, on_nothing: str = "drop") -> Samples:
    """One after another; a sample without a trained token loses its tokens and is named, or stops everything."""
    ids = np.concatenate([np.zeros(0, np.uint32), *(part.ids for part in parts)])
    mask = np.concatenate([np.zeros(0, np.bool_), *(part.mask for part in parts)])
    lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])
    firsts = np.cumsum([0, *(len(part.lengths) for part in parts)]).tolist()
    known = {
        first + number: why for first, part in zip(firsts, parts, strict=False) for number, why in part.dropped.items()
    }
    notes = join_notes((first, part.notes) for first, part in zip(firsts, parts, strict=False))
    trained = count_trained(mask, lengths)
    dropped = {number: known.get(number, NOTHING_TO_TRAIN) for number in np.flatnonzero(trained == 0).tolist()}
    if dropped:
        empty = next((number for number, why in dropped.items() if why == NOTHING_TO_TRAIN), None)
        if on_nothing == "stop" and empty is not None:
            raise TemplateError(
                "no token of this record is trained; pass on_nothing='drop' to leave such records out and count them",
                record=empty,
            )
        kept = np.repeat(trained > 0, lengths)
        ids, mask, lengths = ids[kept], mask[kept], np.where(trained > 0, lengths, 0)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    characters = sum(part.assistant_characters for part in parts)
    return Samples(
        input_ids=ids, loss_mask=mask, offsets=offsets, dropped=dropped, notes=notes, assistant_characters=characters
    )


def count_trained(mask: Bools, lengths: Ints) -> Ints:
    """Trained tokens of each text."""
    counts = np.concatenate((np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)))
    stops = np.cumsum(lengths)
    return np.asarray(counts[stops] - counts[stops - lengths], np.int64)

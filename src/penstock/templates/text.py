"""How is a plain text trained?  All of it, and then its end."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.tokenizers import Tokenizer
from penstock.types import Ids, Ints, Record, Samples

_BATCH = 1024  # records encoded at once
NOTHING_TO_TRAIN = "nothing_to_train"


class TextTemplate:
    """The string under `key`, the tokenizer's own BOS where it has one, and EOS.

    `eos`: True, False, a token, or None: where the tokenizer's config names one.
    """

    version = 1  # raise when the same record gives other tokens

    def __init__(self, tokenizer: Tokenizer, *, key: str = "text", eos: bool | str | None = None) -> None:
        self.tokenizer = tokenizer
        self.key = key
        self.vocab_size = tokenizer.vocab_size
        end = tokenizer.token_id(eos) if isinstance(eos, str) else None if eos is False else tokenizer.eos_id
        if eos is True and end is None:
            raise TemplateError(
                f"{tokenizer!r} names no eos_token (in tokenizer_config.json beside it); "
                f"pass eos='<the token>', or eos=False for texts without an end"
            )
        self._suffix = tokenizer.suffix
        if end is not None and tokenizer.suffix[-1:] != (end,):
            self._suffix = (*tokenizer.suffix, end)

    def identity(self) -> dict[str, Any]:
        return {
            "template": "text",
            "version": self.version,
            "key": self.key,
            "prefix": list(self.tokenizer.prefix),
            "suffix": list(self._suffix),
            "tokenizer": self.tokenizer.identity(),
        }

    def encode(self, records: Iterable[Record]) -> Samples:
        ids: list[Ids] = []
        lengths: list[Ints] = []
        num_records = 0
        for batch in _batches(records, _BATCH):
            texts = [self._text(record, num_records + number) for number, record in enumerate(batch)]
            try:
                bare, offsets = self.tokenizer.encode(texts)
            except TemplateError as error:
                raise TemplateError(str(error), record=num_records + (error.record or 0)) from error
            whole, whole_lengths = surround(bare, offsets, self.tokenizer.prefix, self._suffix)
            ids.append(whole)
            lengths.append(whole_lengths)
            num_records += len(batch)
        all_lengths = np.concatenate([np.zeros(1, dtype=np.int64), *lengths])
        flat = np.concatenate([np.zeros(0, dtype=np.uint32), *ids])
        dropped = dict.fromkeys(np.flatnonzero(all_lengths[1:] == 0).tolist(), NOTHING_TO_TRAIN)
        return Samples(
            input_ids=flat,
            loss_mask=np.ones(len(flat), dtype=np.bool_),
            offsets=np.cumsum(all_lengths),
            dropped=dropped,
        )

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return self.tokenizer.decode(input_ids)

    def _text(self, record: Record, number: int) -> str:
        text = record.get(self.key)
        if isinstance(text, str):
            return text
        found = f"is {type(text).__name__}" if self.key in record else f"is missing among {sorted(record)}"
        raise TemplateError(f"key {self.key!r} {found}, expected a string; name the key with key=", record=number)

    def __repr__(self) -> str:
        return f"TextTemplate(key={self.key!r}, {self.tokenizer!r})"


def surround(bare: Ids, offsets: Ints, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> tuple[Ids, Ints]:
    """Ids and lengths with the same ids put around every text; a text without tokens stays without."""
    lengths = np.diff(offsets)
    around = len(prefix) + len(suffix)
    if not around:
        return bare, lengths
    full_lengths = np.where(lengths > 0, lengths + around, 0)
    ends = np.cumsum(full_lengths)[lengths > 0]
    begins = ends - full_lengths[lengths > 0]
    whole = np.empty(int(full_lengths.sum()), dtype=np.uint32)
    is_bare = np.ones(len(whole), dtype=np.bool_)
    for place, token in enumerate(prefix):
        whole[begins + place] = token
        is_bare[begins + place] = False
    for place, token in enumerate(reversed(suffix), 1):
        whole[ends - place] = token
        is_bare[ends - place] = False
    whole[is_bare] = bare
    return whole, full_lengths


def _batches(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    rest = iter(records)
    while batch := list(islice(rest, size)):
        yield batch

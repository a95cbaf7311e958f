"""How is a plain text trained?  All of it, and then its end."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.templates.ends import find_ends
from penstock.templates.keys import text_under
from penstock.templates.samples import NOTHING_TO_TRAIN, POLICIES, SPECIAL, Tokens, check_choice, encode_batches
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Record, Samples

__all__ = ["NOTHING_TO_TRAIN", "TextTemplate"]


class TextTemplate:
    """The string under `key`, the tokenizer's own BOS where it has one, and EOS.

    bos, eos: True, False, a token, or None: as the tokenizer and its config have it.  A text that has them already
    (rendered by somebody else) gets no second one.
    """

    version = 2  # raise when the same record gives other tokens

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        key: str = "text",
        bos: bool | str | None = None,
        eos: bool | str | None = None,
        special_in_text: SpecialInText = "token",
        on_nothing: str = "drop",
    ) -> None:
        self.tokenizer = tokenizer
        self.key = key
        self.on_nothing = check_choice("on_nothing", on_nothing, POLICIES)
        self.special_in_text = check_choice("special_in_text", special_in_text, SPECIAL)
        self.vocab_size = tokenizer.vocab_size
        self._ends = find_ends(tokenizer, bos=bos, eos=eos)

    def identity(self) -> dict[str, Any]:
        return {
            "template": "text",
            "version": self.version,
            "key": self.key,
            "special_in_text": self.special_in_text,
            "prefix": list(self._ends.prefix),
            "suffix": list(self._ends.suffix),
            "tokenizer": self.tokenizer.identity(),
        }

    def encode(self, records: Iterable[Record]) -> Samples:
        return encode_batches(records, self._encode, on_nothing=self.on_nothing)

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return self.tokenizer.decode(input_ids)

    def _encode(self, records: Sequence[Record]) -> Tokens:
        texts = [text_under(record, self.key, "key", number=number) for number, record in enumerate(records)]
        ids, offsets = self.tokenizer.encode(texts, special=self.special_in_text)
        bare = Tokens(ids=ids, mask=np.ones(len(ids), np.bool_), lengths=np.diff(offsets))
        return self._ends.around(bare, train_prefix=True)

    def __repr__(self) -> str:
        return f"TextTemplate(key={self.key!r}, {self.tokenizer!r})"

"""How is a plain text trained?  All of it, and then its end."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.templates.keys import text_under
from penstock.templates.plain import PlainText
from penstock.templates.samples import NOTHING_TO_TRAIN, Tokens
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Record

__all__ = ["NOTHING_TO_TRAIN", "TextTemplate"]


class TextTemplate(PlainText):
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
        super().__init__(tokenizer, bos=bos, eos=eos, special_in_text=special_in_text, on_nothing=on_nothing)
        self.key = key

    def _own_identity(self) -> dict[str, Any]:
        return {
            "template": "text",
            "key": self.key,
        }

    def _encode(self, records: Sequence[Record]) -> Tokens:
        texts = [text_under(record, self.key, "key", number=number) for number, record in enumerate(records)]
        ids, offsets = self.tokenizer.encode(texts, special=self.special_in_text)
        bare = Tokens(ids=ids, mask=np.ones(len(ids), np.bool_), lengths=np.diff(offsets))
        return self._ends.around(bare, train_prefix=True)

    def __repr__(self) -> str:
        return f"TextTemplate(key={self.key!r}, {self.tokenizer!r})"

"""What have all templates of plain text in common?  A tokenizer, the ends, what becomes of special tokens and of nothing."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from penstock.templates.ends import find_ends
from penstock.templates.samples import POLICIES, SPECIAL, Tokens, check_choice, encode_batches
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Record, Samples


class PlainText:
    version: ClassVar[int]  # raise when the same record gives other tokens

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos: bool | str | None,
        eos: bool | str | None,
        special_in_text: SpecialInText,
        on_nothing: str,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.on_nothing = check_choice("on_nothing", on_nothing, POLICIES)
        self.special_in_text = check_choice("special_in_text", special_in_text, SPECIAL)
        self._ends = find_ends(tokenizer, bos=bos, eos=eos)

    def identity(self) -> dict[str, Any]:
        return {
            **self._own_identity(),
            "version": self.version,
            "special_in_text": self.special_in_text,
            "prefix": list(self._ends.prefix),
            "suffix": list(self._ends.suffix),
            "tokenizer": self.tokenizer.identity(),
        }

    def with_engine(self, *, fast: bool) -> Self:
        """The same template; `fast` decides whether fastokens may encode.  `prepare` decides by the size of the data."""
        made = copy.copy(self)
        made.tokenizer = self.tokenizer.with_engine(fast=fast)
        return made

    def encode(self, records: Iterable[Record]) -> Samples:
        return encode_batches(records, self._encode, on_nothing=self.on_nothing)

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return self.tokenizer.decode(input_ids)

    @abstractmethod
    def _own_identity(self) -> dict[str, Any]:
        """The template's name, and what else changes its tokens."""

    @abstractmethod
    def _encode(self, records: Sequence[Record]) -> Tokens: ...

"""How is a text trained that says itself which of its parts are?  `segments: [{text, label}]`, encoded as one text."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.ends import find_ends
from penstock.templates.keys import value_under
from penstock.templates.pieces import Piece, encode_pieces
from penstock.templates.samples import POLICIES, SPECIAL, Tokens, check_choice, encode_batches
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Record, Samples

_EXPECTED = "a list of {text, label}"


class SegmentsTemplate:
    """Segments under `key`; those whose label is true are trained.

    No EOS unless asked for: whoever writes segments writes the end too.  BOS as the tokenizer has it, never a second one.
    """

    version = 1  # raise when the same record gives other tokens

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        key: str = "segments",
        bos: bool | str | None = None,
        eos: bool | str | None = False,
        special_in_text: SpecialInText = "token",
        on_nothing: str = "drop",
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.key = key
        self.on_nothing = check_choice("on_nothing", on_nothing, POLICIES)
        self.special_in_text = check_choice("special_in_text", special_in_text, SPECIAL)
        self._ends = find_ends(tokenizer, bos=bos, eos=eos)

    def identity(self) -> dict[str, Any]:
        return {
            "template": "segments",
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
        texts = []
        for number, record in enumerate(records):
            segments = value_under(record, self.key, "key", expected=_EXPECTED, number=number)
            texts.append(read_pieces(segments, f"key {self.key!r}", number))
        return encode_pieces(self.tokenizer, texts, self._ends, special=self.special_in_text)

    def __repr__(self) -> str:
        return f"SegmentsTemplate(key={self.key!r}, {self.tokenizer!r})"


def read_pieces(segments: Any, what: str, number: int) -> list[Piece]:
    if not isinstance(segments, list | tuple):
        raise TemplateError(f"{what} is {type(segments).__name__}, expected {_EXPECTED}", record=number)
    pieces = []
    for place, segment in enumerate(segments):
        text, label = (segment.get("text"), segment.get("label")) if isinstance(segment, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(label, bool | int) or label not in (0, 1):
            raise TemplateError(
                f"{what}, segment {place} is {str(segment)[:80]!r}, expected {{'text': a string, 'label': true or false}}",
                record=number,
            )
        pieces.append((text, bool(label)))
    return pieces

"""How is a text trained that says itself which of its parts are?  `segments: [{text, label}]`, encoded as one text."""

from collections.abc import Sequence
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.keys import kind, value_under
from penstock.templates.pieces import Piece, encode_pieces
from penstock.templates.plain import PlainText
from penstock.templates.samples import Tokens
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Record

_EXPECTED = "a list of {text, label}"


class SegmentsTemplate(PlainText):
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
        super().__init__(tokenizer, bos=bos, eos=eos, special_in_text=special_in_text, on_nothing=on_nothing)
        self.key = key

    def _own_identity(self) -> dict[str, Any]:
        return {
            "template": "segments",
            "key": self.key,
        }

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
        raise TemplateError(f"{what} is {kind(segments)}, expected {_EXPECTED}", record=number)
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

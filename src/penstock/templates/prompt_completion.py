"""How is an answer trained that follows a prompt, both plain text?  As one text, of which the answer is trained, and its end.

The two are never encoded apart: that would give the seam tokens which the tokenizer does not make of the whole text.
"""

from collections.abc import Sequence
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.keys import kind, one_key, query_pair, text_under
from penstock.templates.pieces import Piece, encode_pieces
from penstock.templates.plain import PlainText
from penstock.templates.samples import Tokens, check_choice
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Record

TRAIN_ON = ("completion", "all", "assistant", "last")  # the last two are chat's words for the completion


class PromptCompletionTemplate(PlainText):
    """prompt + separator + completion + EOS, trained on the completion and EOS, or on all of it.

    usual: the names looked for where no key is given: "prompt_completion" or "query_response".
    An empty completion is nothing to train, although its EOS could be: a model that learns to say nothing is no accident
    to be had from a hole in the data.
    """

    version = 1  # raise when the same record gives other tokens

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        usual: str = "prompt_completion",
        input_key: str | None = None,
        output_key: str | None = None,
        separator: str | None = None,
        train_on: str = "completion",
        bos: bool | str | None = None,
        eos: bool | str | None = None,
        special_in_text: SpecialInText = "token",
        on_nothing: str = "drop",
    ) -> None:
        super().__init__(tokenizer, bos=bos, eos=eos, special_in_text=special_in_text, on_nothing=on_nothing)
        self.usual = usual
        self.input_key = input_key
        self.output_key = output_key
        # a question and an answer seldom carry the white space between them; a prompt was written to be continued
        self.separator = separator if separator is not None else "\n" if usual == "query_response" else ""
        self.train_on = "all" if check_choice("train_on", train_on, TRAIN_ON) == "all" else "completion"

    def _own_identity(self) -> dict[str, Any]:
        return {
            "template": self.usual,
            "input_key": self.input_key,
            "output_key": self.output_key,
            "separator": self.separator,
            "train_on": self.train_on,
        }

    def _encode(self, records: Sequence[Record]) -> Tokens:
        pieces = [self._pieces(record, number) for number, record in enumerate(records)]
        return encode_pieces(self.tokenizer, pieces, self._ends, special=self.special_in_text)

    def _pieces(self, record: Record, number: int) -> list[Piece]:
        input_key, output_key = self._keys(record, number)
        prompt, completion = record.get(input_key), record.get(output_key)
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise self._refusal(record, input_key, output_key, number)
        if not completion:
            return []
        return [(prompt + self.separator, self.train_on == "all"), (completion, True)]

    def _refusal(self, record: Record, input_key: str, output_key: str, number: int) -> TemplateError:
        for key in (input_key, output_key):
            if isinstance(record.get(key), list | dict):
                found = f"key {key!r} is {kind(record[key])}, expected a string"
                return TemplateError(f"{found}; chat=True takes messages", record=number)
        try:
            text_under(record, input_key, "input_key", number=number)
            text_under(record, output_key, "output_key", number=number)
        except TemplateError as error:
            return error
        raise AssertionError("both are strings")

    def _keys(self, record: Record, number: int) -> tuple[str, str]:
        if self.usual == "prompt_completion":
            output_key = self.output_key or one_key(record, ("completion", "response")) or "completion"
            return self.input_key or "prompt", output_key
        try:
            return query_pair(record, self.input_key, self.output_key)
        except TemplateError as error:
            raise TemplateError(str(error), record=number) from error

    def __repr__(self) -> str:
        keys = f"{self.input_key or 'auto'} → {self.output_key or 'auto'}"
        return f"PromptCompletionTemplate({self.usual}, {keys}, {self.tokenizer!r})"

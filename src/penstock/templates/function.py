"""A template from a user's function: record → ids, segments or a conversation, and values of further columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.chat.options import open_chat
from penstock.templates.conversation import Conversation
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.samples import KEEP, join, read_each
from penstock.templates.text import PlainText, read_pieces
from penstock.templates.tokenizer.byte_offsets import borders
from penstock.templates.tokenizer.tokenizer import SpecialInText, Tokenizer
from penstock.types import Column, Record, Samples, Values

_EXPECTED = "a dict with input_ids, a list of {text, label}, or a Conversation"
_KEYS = ("input_ids", "segments", "conversation")  # of a dict: what becomes tokens; one of them
_TAKEN = (*_KEYS, "labels", "loss_mask", "assistant_masks", "completion_mask", "attention_mask")
_KINDS = {
    "token": "one value for each of its {} tokens",
    "sample": "one value",
    "list": "a flat list of values",
}


class PassOn:
    """Reader of records that hold a finished conversation."""

    names: Mapping[str, str] = {}
    nulls = "drop"

    def __call__(self, record: Record, number: int | None = None) -> Conversation:
        conversation: Conversation = record["conversation"]
        return conversation

    def identity(self) -> dict[str, Any]:
        return {"shape": "conversation"}


class FunctionTemplate(PlainText):
    """Encode the answers of `function`.  Raise `version` when the function changes: it is part of the store's key.

    The function must depend on nothing but the record; for worker processes it must stand at the top of a module.
    bos, eos: for segments.  chat: options of the chat template ({} for none), needed if the function gives conversations.
    columns: further values of each sample.  The function then gives a dict with `input_ids`, `segments` or `conversation`, and the values
    under the names of the columns.
    """

    version = 1  # ours, of what is done with the function's answer

    def __init__(
        self,
        function: Callable[[Record], Any],
        tokenizer: Tokenizer,
        *,
        version: str,
        bos: bool | str | None = None,
        eos: bool | str | None = False,
        special_in_text: SpecialInText = "token",
        on_nothing: str = "drop",
        chat: dict[str, Any] | None = None,
        columns: Sequence[Column] = (),
    ) -> None:
        if not callable(function):
            raise TemplateError(
                f"function is a {type(function).__name__}, expected a callable that takes a record"
            )
        if not isinstance(version, str) or not version:
            raise TemplateError(
                f"version is {version!r}, expected text such as '1': it tells stores made by an older function apart"
            )
        self.function = function
        self.function_version = version
        self.columns = _check_columns(columns)
        super().__init__(
            tokenizer, bos=bos, eos=eos, special_in_text=special_in_text, on_nothing=on_nothing
        )
        self._ids = PretokenizedTemplate(tokenizer)
        if chat and chat.get("message_weights"):
            raise TemplateError(
                "a FunctionTemplate has no message_weights; declare a column of weights and give its values"
            )
        self._chat = None if chat is None else open_chat(tokenizer, reader=PassOn(), **chat)

    def with_engine(self, *, fast: bool) -> Self:
        made = super().with_engine(fast=fast)
        made._chat = None if self._chat is None else self._chat.with_engine(fast=fast)
        return made

    @property
    def name(self) -> str:
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{named.__module__}.{named.__qualname__}"

    def _own_identity(self) -> dict[str, Any]:
        return {
            "template": "function",
            "function": self.name,
            "function_version": self.function_version,
            "ids": self._ids.identity(),
            "chat": None if self._chat is None else self._chat.identity(),
            **({"columns": [asdict(column) for column in self.columns]} if self.columns else {}),
        }

    def _encode(self, records: Sequence[Record]) -> Samples:
        """Encode consecutive answers of one kind together."""
        answers: list[tuple[Callable[..., Samples], Any]] = []
        values: dict[str, list[Any]] = {column.name: [] for column in self.columns}
        for number, record in enumerate(records):
            given = self.function(record)
            answers.append(self._kind(given, number))
            for column in self.columns:
                values[column.name].append(self._value(column, given, number))
        parts: list[Samples] = []
        first = 0
        for encode, group in groupby(answers, key=itemgetter(0)):
            own = [answer for _, answer in group]
            try:
                parts.append(encode(own))
            except TemplateError as error:
                place = None if error.record is None else first + error.record
                raise TemplateError(
                    f"{self.name} returned an unusable value: {error}", record=place
                ) from error
            first += len(own)
        columns = {column.name: _flat(column, values[column.name]) for column in self.columns}
        return replace(join(parts, on_nothing=KEEP), columns=columns)

    def _kind(self, given: Any, number: int) -> tuple[Callable[..., Samples], Any]:
        """How an answer is encoded, and the part of it that becomes tokens."""
        keys = [key for key in _KEYS if key in given] if isinstance(given, dict) else []
        answer = given[keys[0]] if len(keys) == 1 and keys != ["input_ids"] else given
        if isinstance(answer, Conversation):
            if self._chat is None:
                raise TemplateError(
                    f"{self.name} returned a Conversation; pass chat={{}} or options", record=number
                )
            return self._encode_conversations, answer
        if isinstance(answer, dict) and "input_ids" in answer:
            return self._ids.encode_all, answer
        if isinstance(answer, list):
            return self._encode_segments, answer
        raise TemplateError(
            f"{self.name} returned {type(given).__name__} {str(given)[:60]!r}, expected {_EXPECTED}",
            record=number,
        )

    def _encode_segments(self, answers: list[Any]) -> Samples:
        return self._encode_pieces(
            read_each(lambda answer: read_pieces(answer, "its list"), answers)
        )

    def _encode_conversations(self, answers: list[Conversation]) -> Samples:
        assert self._chat is not None  # checked by _kind
        return self._chat.encode({"conversation": answer} for answer in answers)

    def _value(self, column: Column, given: Any, number: int) -> npt.NDArray[Any]:
        """The values of one column in an answer, checked."""
        what = f"{self.name} returned for the column {column.name!r}"
        if not isinstance(given, dict) or column.name not in given:
            expected = f"a dict with {column.name!r} next to {' or '.join(_KEYS)}"
            raise TemplateError(f"{what} no value, expected {expected}", record=number)
        if column.per == "token" and "input_ids" not in given:
            reason = "no input_ids, which a column with one value per token needs"
            raise TemplateError(f"{what} {reason}", record=number)
        size = len(given["input_ids"]) if column.per == "token" else None
        try:
            values = np.asarray(given[column.name])
            made = values.astype(column.dtype)
        except (
            ValueError,
            TypeError,
            OverflowError,
        ):  # lists of different lengths in a list, text, huge integers
            values = made = np.asarray(None)
        fits = (
            values.shape == (size,)
            if size is not None
            else values.ndim == (0 if column.per == "sample" else 1)
        )
        is_exact = made.dtype.kind == "f" or np.array_equal(made, values)  # only floats are rounded
        if not (fits and is_exact and values.dtype.kind in "biuf"):
            found = f"{str(given[column.name])[:60]!r}"
            raise TemplateError(
                f"{what} {found}, expected {_KINDS[column.per].format(size)} of {column.dtype}",
                record=number,
            )
        return made

    def __repr__(self) -> str:
        return (
            f"FunctionTemplate({self.name}, version {self.function_version!r}, {self.tokenizer!r})"
        )


def _check_columns(given: Sequence[Column]) -> tuple[Column, ...]:
    for place, column in enumerate(given):
        if not isinstance(column, Column):
            raise TemplateError(
                f"columns[{place}] is {column!r}, expected a Column(name=, dtype=, per=)"
            )
        if column.name in (*_TAKEN, *(other.name for other in given[:place])):
            raise TemplateError(
                f"columns[{place}] has the name {column.name!r}, which is taken; choose another one"
            )
        if column.per not in _KINDS:
            raise TemplateError(
                f"column {column.name!r} has per={column.per!r}, expected one of {', '.join(_KINDS)}"
            )
        if column.dtype not in np.sctypeDict or np.dtype(column.dtype).kind not in "iuf":
            expected = "a numpy type of numbers such as float32"
            raise TemplateError(
                f"column {column.name!r} has the dtype {column.dtype!r}, expected {expected}"
            )
    return tuple(given)


def _flat(column: Column, values: list[npt.NDArray[Any]]) -> Values:
    if column.per == "list":
        return Values(np.concatenate(values), borders([len(one) for one in values]))
    return Values(
        np.concatenate(values) if column.per == "token" else np.array(values, column.dtype)
    )

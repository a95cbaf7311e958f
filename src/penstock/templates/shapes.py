"""The shapes of records: one table, from which readers, the registry of templates, detection and the keys of recipes are made.

A reader never changes a record, and what it returns may share parts with it.  The shapes of this module belong to the core; others are
plugins of the group `templates`, each a RecordShape under its own name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from penstock import plugins
from penstock.errors import PluginError
from penstock.templates.conversation import LIST, Message, Read, Reader
from penstock.templates.fields import (
    dicts_in,
    is_null,
    is_side,
    is_turn,
    one_key,
    query_keys,
    query_pair,
    read_history,
    text_under,
    value_under,
)
from penstock.templates.pretokenized import PretokenizedTemplate
from penstock.templates.text import (
    PromptCompletionTemplate,
    SegmentsTemplate,
    TextTemplate,
)
from penstock.types import Record, Template

CONVERSATIONS = ("conversations", "conversation", "messages")  # usual keys of a list of messages
BESIDE_TURNS = ("tools", "system", "system_prompt", "documents", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class Fit:
    """How one record fits a shape: the options that it needs, and the keys that are read."""

    options: tuple[tuple[str, Any], ...] = ()
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordShape:
    """One way to write a record.  A shape with both `reads` and `template` is a conversation or plain text, see `uses_chat`."""

    name: str
    # False: the column is empty in this row.
    looks_like: Callable[[Record, Mapping[str, Any]], Fit | bool | None]
    reads: Callable[[Reader, Record], Read] | None = None  # as a conversation
    options: tuple[str, ...] = ()  # of the reader
    template: Callable[..., Template] | None = None  # as plain text, or as ids
    alias: str | None = None
    # The template also takes the options of conversations, and decides row by row.
    has_messages: bool = False
    is_packed: bool = True  # samples may share a row of a batch
    # Rows that look like this are nothing else, whatever else they look like: as such, their bad examples would be trained, too.
    is_exclusive: bool = False
    # Rows that look like anything else are not this.
    is_last_resort: bool = False


# Reading a record as a conversation


def _read_messages(reader: Reader, record: Record) -> Read:
    key = reader.messages_key or "messages"
    role = reader.role_key or "role"
    content = reader.content_key or "content"
    return reader.listed(
        value_under(record, key, "messages_key", expected=LIST), key, role, content
    ), None


def _read_sharegpt(reader: Reader, record: Record) -> Read:
    key = (
        reader.messages_key or one_key(record, ("conversations", "conversation")) or "conversations"
    )
    value = value_under(record, key, "messages_key", expected=LIST)
    return reader.listed(value, key, reader.role_key, reader.content_key), None


def _read_alpaca(reader: Reader, record: Record) -> Read:
    input_key = reader.input_key or "input"
    output_key = reader.output_key or "output"
    asked = [text_under(record, reader.instruction_key, "instruction_key")]
    asked.append(
        text_under(record, input_key, "input_key") if record.get(input_key) is not None else ""
    )
    answer = text_under(record, output_key, "output_key")
    messages = read_history(record, reader.history_key)
    messages.append({"role": "user", "content": reader.separator.join(filter(None, asked))})
    messages.append({"role": "assistant", "content": answer})
    return messages, len(messages) - 1


def _read_prompt_completion(reader: Reader, record: Record) -> Read:
    output_key = reader.output_key or one_key(record, ("completion", "response")) or "completion"
    return _read_sides(reader, record, reader.input_key or "prompt", output_key)


def _read_query_response(reader: Reader, record: Record) -> Read:
    return _read_sides(reader, record, *query_pair(record, reader.input_key, reader.output_key))


def _read_sides(reader: Reader, record: Record, input_key: str, output_key: str) -> Read:
    """Each side is a string, one message or a list of messages."""
    messages: list[Message] = []
    num_before = 0
    for key, option, role in (
        (input_key, "input_key", "user"),
        (output_key, "output_key", "assistant"),
    ):
        num_before = len(messages)
        side = value_under(record, key, option)
        messages += (
            [{"role": role, "content": side}] if isinstance(side, str) else reader.listed(side, key)
        )
    return messages, num_before


# Whether a record looks like a shape


def _like_text(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("key", "text")
    if isinstance(record.get(key), str):
        return Fit(uses=(key,))
    return _is_empty(record, key)


def _is_empty(record: Record, key: str) -> bool | None:
    """What `looks_like` gives where a column is empty in this record (False), or holds something else (None)."""
    return False if is_null(record, key) else None


def _like_messages(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("messages_key") or "messages"
    role_key = options.get("role_key") or "role"
    turns = dicts_in(record.get(key))
    if not turns:
        return _is_empty(record, key)
    if not all(role_key in turn for turn in turns):
        return None
    return Fit(uses=(key, *BESIDE_TURNS))


def _like_sharegpt(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("messages_key") or one_key(record, CONVERSATIONS)
    turns = dicts_in(record.get(key)) if key else None
    if key is None or not turns:
        return False if key and is_null(record, key) else None
    usual = key in CONVERSATIONS[:2]
    if options.get("role_key"):
        fits = usual and all(options["role_key"] in turn for turn in turns)
    else:
        roles = () if usual else ("role",)  # under another key, turns with a role are messages
        fits = all(is_turn(turn) and not any(role in turn for role in roles) for turn in turns)
    found = () if usual else (("messages_key", key),)
    return Fit(found, (key, *BESIDE_TURNS)) if fits else None


def _like_alpaca(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    instruction = options.get("instruction_key", "instruction")
    input_key = options.get("input_key") or "input"
    output_key = options.get("output_key") or "output"
    if not isinstance(record.get(instruction), str) or not isinstance(record.get(output_key), str):
        return None
    if not isinstance(record.get(input_key), str | None):
        return None
    return Fit(uses=(instruction, input_key, output_key, "history", *BESIDE_TURNS))


def _like_prompt_completion(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    input_key = options.get("input_key") or "prompt"
    output_key = options.get("output_key") or one_key(record, ("completion", "response"))
    if input_key != "prompt" or output_key is None:
        return None  # other names: query and response
    return _like_sides(record, input_key, output_key)


def _like_query_response(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    usual_queries, usual_responses = query_keys(record)
    queries = _sides_among(record, options.get("input_key"), usual_queries)
    responses = _sides_among(record, options.get("output_key"), usual_responses)
    if len(queries) != 1 or len(responses) != 1:
        return None
    fit = _like_sides(record, queries[0], responses[0])
    if fit is None:
        return None
    keys = (("input_key", queries[0]), ("output_key", responses[0]))
    return Fit((*keys, *fit.options), fit.uses)


def _sides_among(record: Record, given: str | None, usual: Sequence[str]) -> list[str]:
    """The key that is given, else those of the usual ones that hold text or messages."""
    return [given] if given else [key for key in usual if is_side(record[key])]


def _like_sides(record: Record, input_key: str, output_key: str) -> Fit | None:
    sides = [record.get(input_key), record.get(output_key)]
    if not all(map(is_side, sides)):
        return None
    if all(isinstance(side, str) for side in sides):
        return Fit(uses=(input_key, output_key))
    return Fit((("chat", True),), (input_key, output_key, *BESIDE_TURNS))


def _like_pretokenized(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("input_key") or "input_ids"
    ids = record.get(key)
    if isinstance(ids, list):
        if not ids:
            return False
        return Fit(uses=(key,)) if type(ids[0]) is int else None
    if not isinstance(ids, np.ndarray) or ids.ndim != 1:
        return None
    return Fit(uses=(key,)) if np.issubdtype(ids.dtype, np.integer) else None


def _like_segments(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("key", "segments")
    segments = dicts_in(record.get(key))
    if not segments:
        return _is_empty(record, key)
    if not all("text" in segment and "label" in segment for segment in segments):
        return None
    return Fit(uses=(key,))


_LISTED = ("messages_key", "role_key", "content_key")
_SIDES = ("input_key", "output_key")

_OF_CORE = (
    RecordShape(name="text", looks_like=_like_text, template=TextTemplate),
    RecordShape(
        name="messages",
        alias="chat",
        looks_like=_like_messages,
        reads=_read_messages,
        options=_LISTED,
    ),
    RecordShape(name="sharegpt", looks_like=_like_sharegpt, reads=_read_sharegpt, options=_LISTED),
    RecordShape(
        name="alpaca",
        looks_like=_like_alpaca,
        reads=_read_alpaca,
        options=("instruction_key", *_SIDES, "history_key", "separator"),
    ),
    RecordShape(
        name="prompt_completion",
        looks_like=_like_prompt_completion,
        reads=_read_prompt_completion,
        options=_SIDES,
        template=PromptCompletionTemplate,
    ),
    RecordShape(
        name="query_response",
        looks_like=_like_query_response,
        reads=_read_query_response,
        options=_SIDES,
        template=partial(PromptCompletionTemplate, usual="query_response"),
    ),
    RecordShape(name="pretokenized", looks_like=_like_pretokenized, template=PretokenizedTemplate),
    RecordShape(name="segments", looks_like=_like_segments, template=SegmentsTemplate),
)


@cache
def shapes() -> dict[str, RecordShape]:
    """Return all shapes by name: those of the core, then those of plugins."""
    by_name = {shape.name: shape for shape in _OF_CORE}
    for name, shape in plugins.every("templates"):
        if not isinstance(shape, RecordShape) or shape.name != name or name in by_name:
            raise PluginError(
                f"the plugin {name!r} of penstock.templates is {shape!r}, expected a RecordShape with this name, which no shape of the "
                f"core has; correct the entry point of its package"
            )
        by_name[name] = shape
    return by_name

"""Find the fields of a conversation that its chat template does not print: reasoning, tool calls, parts, whole messages.

A field's words are searched for in the rendering.  A search alone can be wrong: "5" occurs by chance, a tool's answer repeats its call.
So made-up messages of the same kinds are rendered, too.  Where the two answers agree, that is the answer.  Where the template does not
print such a field but the words occur, the conversation is rendered again with made-up words in that message.  The result depends on
the record and the template alone.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.chat.headers import LEADS
from penstock.templates.chat.instrument import Attribution
from penstock.templates.chat.kinds import (
    ANSWER,
    REASONING,
    THOUGHT_END,
    TOOL,
    USER,
    Kinds,
    MadeUp,
    call_names,
    functions_of,
    is_text,
    role_of,
)
from penstock.templates.conversation import Conversation, Message
from penstock.templates.to_json import spellings

_KNOWN = frozenset(("role", "content", "tool_calls", *REASONING))
_MOST_LEAVES = 200  # strings of one field that are looked for
_MOST_STATES = 4096  # remembered
# From so many words on, another field of the assistant is text and not a label or a date.
_MANY_WORDS = 4
# how a template prints a field
_WHOLE = "whole"
_ALTERED = "altered"
_ABSENT = "absent"

Fields = dict[str, list[str]]  # field → its words
Render = Callable[[Conversation], str | None]  # None where the template refuses the conversation


class NotPrinted(TemplateError):
    """A record has fields that the chat template does not print."""

    def __init__(self, fields: dict[str, int], record: int | None = None) -> None:
        """fields: their names, with the characters of each that are not printed."""
        listed = ", ".join(
            name + (f" ({size:,} characters)" if size else "") for name, size in fields.items()
        )
        super().__init__(
            f"the chat template does not print {listed}; choose a chat_template that does, remove what it does not print, or pass "
            f"on_unrendered='warn' (count such records) or 'skip' (leave them out and count them)",
            record=record,
        )


class Unrendered:
    """What one chat template leaves out."""

    def __init__(self, render: Render, kinds: Kinds) -> None:
        self._render = render
        self._kinds = kinds
        self._known: dict[tuple[Any, ...], dict[str, str]] = {}

    def find(
        self,
        conversation: Conversation,
        kinds: Sequence[int],
        text: str,
        printed_by: Callable[[int], str],
    ) -> dict[str, int]:
        """Characters that `text` lacks, by field.  `printed_by` gives what a message printed of the text; "" where that is unknown."""
        missing: dict[str, int] = {}
        last_user = _last_user(conversation.messages)
        for place, message in enumerate(conversation.messages):
            fields = fields_of(message)
            if not fields:
                continue
            is_earlier = place < last_user
            states = self._states_of(conversation, kinds, place, is_earlier=is_earlier)
            for name, words in fields.items():
                state = states.get(_general(name))
                if state == _WHOLE and all(_is_printed(word, text) for word in words):
                    continue
                printed = printed_by(place) or text
                if state == _ABSENT and all(_is_printed(word, printed) for word in words):
                    # by chance, or printed here and not among made-up messages
                    own_states = self._states_in(conversation, kinds, place)
                    state = own_states.get(_general(name), _WHOLE)
                num_lost = _num_lost(state, words, printed)
                if num_lost is not None:
                    _add(missing, message, name, num_lost, is_earlier=is_earlier)
        return {**missing, **self.unused(conversation)}

    def _states_of(
        self, conversation: Conversation, kinds: Sequence[int], place: int, *, is_earlier: bool
    ) -> dict[str, str]:
        """How the template prints the fields of such a message between such neighbours; remembered."""
        before, own, after = (-1, *kinds, -1)[place : place + 3]
        has_tools = bool(conversation.tools)
        goes_on = place + 2 < len(kinds)
        spot = (before, own, after, goes_on, is_earlier, has_tools, _key(conversation.kwargs))
        states = self._known.get(spot)
        if states is None:
            states = self._states_around(spot, conversation.kwargs)
            if len(self._known) < _MOST_STATES:
                self._known[spot] = states
        return states

    def agrees(
        self, conversation: Conversation, kinds: Sequence[int], absent: Collection[tuple[int, str]]
    ) -> bool:
        """Whether `find` takes these fields, as (message, field), and no others, for fields that the template does not print."""
        last_user = _last_user(conversation.messages)
        taken = set()
        for place in range(len(conversation.messages)):
            states = self._states_of(conversation, kinds, place, is_earlier=place < last_user)
            taken |= {(place, name) for name, state in states.items() if state == _ABSENT}
        return taken == set(absent)

    def unused(self, conversation: Conversation) -> dict[str, int]:
        """Tools and documents that the template does not print."""
        given = {"tools": conversation.tools, "documents": conversation.documents}
        return {
            name: 0
            for name, value in given.items()
            if value and not self._prints(name, conversation)
        }

    def _prints(self, name: str, conversation: Conversation) -> bool:
        """Whether the template prints tools, or documents, at all."""
        has_system = conversation.messages[0].get("role") == "system"
        spot = (name, has_system, _key(conversation.kwargs))
        if spot not in self._known:
            roles = ("system", "user", "assistant") if has_system else ("user", "assistant")
            word = "penstocktoola" if name == "tools" else "penstockdocument"
            made_up = Conversation(
                messages=[{"role": role, "content": "x"} for role in roles],
                tools=[TOOL] if name == "tools" else None,
                documents=None if name == "tools" else [{"title": word, "text": word}],
                kwargs=conversation.kwargs,
            )
            text = self._render(made_up)
            self._known[spot] = {name: _WHOLE if text is None or word in text else _ABSENT}
        return self._known[spot][name] != _ABSENT

    def _states_around(self, spot: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
        """Return how the template prints the fields of a message between such neighbours.  Empty if it refuses made-up conversations."""
        before, own, after, goes_on, is_earlier, tools, _ = spot
        kinds = [self._kinds[number] for number in (before, own, after) if number >= 0]
        if is_earlier and role_of(kinds[-1]) != "user":
            kinds += [ANSWER, USER, ANSWER] if role_of(kinds[-1]) == "tool" else [USER, ANSWER]
        elif goes_on and role_of(kinds[-1]) == "user":
            kinds.append(ANSWER)  # some templates print a system message with the last user's only
        for lead in LEADS if before >= 0 else LEADS[:1]:
            made = MadeUp([*lead, *kinds])
            place = len(lead) + (before >= 0)
            messages = [
                *made.messages[:place],
                made.changed(_odd_words)[place],
                *made.messages[place + 1 :],
            ]
            given = Conversation(messages=messages, tools=[TOOL] if tools else None, kwargs=kwargs)
            if states := self._states(given, place):
                return states
        return {}

    def _states_in(
        self, conversation: Conversation, kinds: Sequence[int], place: int
    ) -> dict[str, str]:
        """The same for one message of the conversation itself."""
        made = MadeUp([self._kinds[kinds[place]]]).changed(_odd_words)
        messages = [*conversation.messages[:place], *made, *conversation.messages[place + 1 :]]
        return self._states(replace(conversation, messages=messages), place)

    def _states(self, given: Conversation, place: int) -> dict[str, str]:
        """How the fields of a made-up message are printed."""
        if (text := self._render(given)) is None:
            return {}
        states = {}
        for name, words in fields_of(given.messages[place], made_up=True).items():
            if words:
                states[_general(name)] = _state(words, text)
                continue
            # a part without words is absent if the text is the same without it
            message = dict(given.messages[place])
            message["content"] = [
                part for part in message["content"] if f"content[{part.get('type')}]" != name
            ]
            messages = [*given.messages[:place], message, *given.messages[place + 1 :]]
            states[name] = (
                _ABSENT if self._render(replace(given, messages=messages)) == text else _ALTERED
            )
        return states


def absent_fields(messages: Sequence[Message], whole: Attribution) -> frozenset[tuple[int, str]]:
    """(message, field) of made-up messages where a message does not print a field."""
    fields = [(place, fields_of(message, made_up=True)) for place, message in enumerate(messages)]
    return frozenset(
        (place, _general(name))
        for place, some in fields
        for name, words in some.items()
        if _state(words, whole.printed_by(place) or whole.text) == _ABSENT
    )


def count_words(
    messages: Sequence[Message], absent: Collection[tuple[int, str]]
) -> tuple[int, dict[str, int]]:
    """How many characters the assistant's fields have; how many of all fields are not printed, as `absent_fields` says."""
    said = 0
    missing = dict[str, int]()
    places = {place for place, _ in absent}
    last_user = _last_user(messages) if absent else -1
    for place, message in enumerate(messages):
        is_assistant = message.get("role") == "assistant"
        if is_assistant and is_text(message) and place not in places:
            said += len(message["content"])
        elif is_assistant or place in places:
            for name, words in fields_of(message).items():
                size = sum(map(len, words))
                said += size if is_assistant else 0
                if (place, _general(name)) in absent:
                    _add(missing, message, name, size, is_earlier=place < last_user)
    return said, missing


def _general(field: str) -> str:
    """Templates are given reasoning under all of its names."""
    return REASONING[0] if field in REASONING else field


def _add(
    missing: dict[str, int], message: Message, name: str, lost: int, *, is_earlier: bool
) -> None:
    """Count characters of a field under its name."""
    role = message.get("role", "")
    key = f"{role}.{name}{', earlier turns' if role == 'assistant' and is_earlier else ''}"
    missing[key] = missing.get(key, 0) + lost


def fields_of(message: Message, *, made_up: bool = False) -> Fields:
    """Return the text of each field: content, reasoning, calls, and other assistant texts, which may be short in made-up messages."""
    if is_text(message):
        return {"content": [message["content"]]}
    fields = _content_fields(message.get("content"))
    for name in REASONING:
        if isinstance(thought := message.get(name), str) and thought.strip():
            fields[name] = [thought]
            break
    if isinstance(calls := message.get("tool_calls"), list) and calls:
        fields["tool_calls"] = call_names(message)
        _collect(
            [function.get("arguments") for function in functions_of(message)], fields["tool_calls"]
        )
    if message.get("role") == "assistant" and not _KNOWN.issuperset(message):
        for name, value in message.items():
            is_text_field = name not in _KNOWN and isinstance(value, str)
            if is_text_field and (made_up or len(value.split(None, _MANY_WORDS)) >= _MANY_WORDS):
                fields[name] = [value]
    return fields


def _content_fields(content: Any) -> Fields:
    if not content:
        return {}
    if isinstance(content, str):
        thought, _, answer = content.rpartition(THOUGHT_END)
        thought = thought.strip().removeprefix("<think>").strip()
        found = {"content <think>": thought, "content": answer}
        return {name: [words] for name, words in found.items() if words.strip()}
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        wordless = sorted({str(part.get("type")) for part in parts if "text" not in part})
        said = {"content": [text for text in texts if text.strip()]}
        return {
            **{name: words for name, words in said.items() if words},
            **{f"content[{kind}]": [] for kind in wordless},
        }
    return {"content": _collect(content, [])} if isinstance(content, dict) else {}


def _collect(value: Any, found: list[str]) -> list[str]:
    """All strings in a value, keys excepted, up to a number."""
    if type(value) is str:
        if value and len(found) < _MOST_LEAVES:
            found.append(value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _collect(inner, found)
    return found


def _last_user(messages: Sequence[Message]) -> int:
    return max(
        (place for place, message in enumerate(messages) if message.get("role") == "user"),
        default=-1,
    )


def _odd_words(word: str) -> str:
    """Words with characters that templates escape."""
    return f'{word}begin "two" <b>é</b>\\ {word}middle\n{word}end'


def _is_printed(words: str, text: str) -> bool:
    """Return whether words occur, as they are or as JSON, with any whitespace around them."""
    words = words.strip()
    return words in text or any(spelling in text for spelling in spellings(words))


def _state(words: list[str], text: str) -> str:
    if all(_is_printed(word, text) for word in words):
        return _WHOLE
    pieces = [piece for word in words for piece in word.split() if "penstock" in piece]
    text = text.lower()
    return _ALTERED if all(piece in text for piece in pieces) else _ABSENT


def _num_lost(state: str | None, words: list[str], text: str) -> int | None:
    """How many characters of a field are not printed; None where it is printed."""
    if state == _ABSENT:
        return sum(map(len, words))  # an image has none
    if state == _ALTERED:
        return None
    lines = [line.strip() for word in words for line in word.splitlines()]
    return sum(len(line) for line in lines if not _is_printed(line, text)) or None


def _key(kwargs: dict[str, Any]) -> str:
    return json.dumps(kwargs, sort_keys=True, default=str) if kwargs else ""

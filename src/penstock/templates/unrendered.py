"""Find the fields of a conversation that its chat template does not print: reasoning, tool calls, parts, whole messages.

A field's words are searched for in the rendering.  A search alone can be wrong: "5" occurs by chance, a tool's answer repeats its call.  So
the template is also asked what it prints: a message with the same fields, made of made-up words, is rendered once between neighbours of the
same roles (its *kind*).  Where the two answers agree, that is the answer.  Where the template does not print such a field but the words
occur, the conversation is rendered again with made-up words in that message.  The result depends on the record and the template alone.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from penstock.templates.messages import Conversation, Message

_REASONING = ("reasoning_content", "thinking", "reasoning")  # a template is given the first one under all names
_KNOWN = frozenset(("role", "content", "tool_calls", *_REASONING))
_MOST_LEAVES = 200  # strings of one field that are looked for
_MOST_KINDS = 4096  # remembered
_MANY_WORDS = 4  # from so many words on, another field of the assistant is text and not a label or a date

Render = Callable[[Conversation], str | None]  # None where the template refuses the conversation
Kind = tuple[Any, ...]
Shape = tuple[tuple[str, Any], ...]  # fields of a message, with what they are made of
WHOLE, ALTERED, ABSENT = "whole", "altered", "absent"  # how a template prints a field


class Unrendered:
    """What one chat template leaves out."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._kinds: dict[Kind, dict[str, str]] = {}
        self._plain: set[Kind] = set()  # kinds whose content is printed whole, of messages that have nothing else
        self._whole: set[Kind] = set()  # orders of roles in which all messages are of such kinds

    def find(self, conversation: Conversation, text: str, own: Callable[[int], str]) -> tuple[dict[str, int], int]:
        """Characters that `text` lacks, by field; and how many characters the assistant's fields have.

        `own` gives the part of the text in which a message may be printed.
        """
        given = (
            bool(conversation.tools),
            json.dumps(conversation.kwargs, sort_keys=True, default=str) if conversation.kwargs else "",
        )
        roles = [message.get("role", "") for message in conversation.messages]
        order = (*roles, given)
        if order in self._whole and (said := _in_order(conversation.messages, text)) is not None:
            return self._unused(conversation, roles, given), said
        last_user = max((place for place, role in enumerate(roles) if role == "user"), default=-1)
        around = [None, *roles, None]
        missing: dict[str, int] = {}
        characters = start = 0
        plain = True
        for place, message in enumerate(conversation.messages):
            role = roles[place]
            spot = (role, around[place], around[place + 2], place < last_user, given)
            content = message.get("content")
            if type(content) is str and _LABELS.issuperset(message):
                if spot in self._plain and (at := text.find(content, start)) >= 0:
                    start = at + len(content)
                    characters += len(content) if role == "assistant" else 0
                    continue
            else:
                plain = False
            shape, fields = _fields(message)
            if not fields:
                continue
            known = self._kinds.get((spot, shape))
            if known is None:
                known = self._learn(spot, shape, conversation)
            stop = start
            for name, words in fields:
                if role == "assistant":
                    characters += sum(map(len, words))
                state = known.get(name)
                if state == WHOLE:
                    ends = [_end(word, text, start) for word in words]
                    if -1 not in ends:
                        stop = max(stop, *ends)
                        continue
                lost = self._lost(state, name, words, conversation, place, shape, own(place))
                if lost is not None:
                    late = ", earlier turns" if role == "assistant" and place < last_user else ""
                    key = f"{role}.{name}{late}"
                    missing[key] = missing.get(key, 0) + lost
            start = stop
        if plain and not missing and len(self._whole) < _MOST_KINDS:
            self._whole.add(order)
        return {**missing, **self._unused(conversation, roles, given)}, characters

    def _unused(self, conversation: Conversation, roles: list[str], given: tuple[bool, str]) -> dict[str, int]:
        """Tools and documents that the template does not print."""
        values = (("tools", conversation.tools), ("documents", conversation.documents))
        return {name: 0 for name, value in values if value and not self._prints(name, roles[:1] == ["system"], given)}

    def _lost(
        self,
        state: str | None,
        name: str,
        words: list[str],
        conversation: Conversation,
        place: int,
        shape: Shape,
        text: str,
    ) -> int | None:
        """Characters of a field that are not printed; None where all are."""
        if state == ABSENT and all(_printed(word, text) for word in words):
            state = self._in_place(conversation, place, shape).get(name, WHOLE)
        if state == ABSENT:
            return sum(map(len, words))
        if state == ALTERED:
            return None
        lines = [line.strip() for word in words for line in word.splitlines()]
        return sum(len(line) for line in lines if not _printed(line, text)) or None

    def _learn(self, spot: Kind, shape: Shape, conversation: Conversation) -> dict[str, str]:
        """How the template prints the fields of a message of this kind.  Empty where it refuses the made-up conversation."""
        role, before, after, earlier, (tools, _) = spot
        message, words = _made_up(role, shape)
        follow = [] if after is None else [_neighbour(after)]
        if earlier and after != "user":
            follow += [_neighbour("assistant")] if after == "tool" else []
            follow += [_neighbour("user"), _neighbour("assistant")]
        first = _before(before, role)
        messages = [*first, message, *follow]
        made = Conversation(messages=messages, tools=[_TOOL] if tools else None, kwargs=conversation.kwargs)
        known = self._states(made, len(first), words)
        if len(self._kinds) < _MOST_KINDS:
            self._kinds[spot, shape] = known
            if shape == _TEXT and known.get("content") == WHOLE:
                self._plain.add(spot)
        return known

    def _in_place(self, conversation: Conversation, place: int, shape: Shape) -> dict[str, str]:
        """The same of one message where it stands."""
        message, words = _made_up(conversation.messages[place].get("role", ""), shape)
        extra = {key: value for key, value in conversation.messages[place].items() if key not in message}
        messages = [*conversation.messages[:place], {**extra, **message}, *conversation.messages[place + 1 :]]
        made = Conversation(
            messages=messages, tools=conversation.tools, documents=conversation.documents, kwargs=conversation.kwargs
        )
        return self._states(made, place, words)

    def _states(self, made: Conversation, place: int, fields: dict[str, list[str]]) -> dict[str, str]:
        text = self._render(made)
        if text is None:
            return {}
        states = {name: _state(words, text) for name, words in fields.items() if words}
        for name in fields.keys() - states.keys():  # a part without words: is the text another one without it?
            message = dict(made.messages[place])
            message["content"] = [part for part in message["content"] if f"content[{part['type']}]" != name]
            messages = [*made.messages[:place], message, *made.messages[place + 1 :]]
            without = self._render(Conversation(messages=messages, tools=made.tools, kwargs=made.kwargs))
            states[name] = ABSENT if without == text else ALTERED
        return states

    def _prints(self, name: str, system: bool, given: tuple[bool, str]) -> bool:
        """Whether the template prints tools, or documents, at all."""
        kind = (name, system, given[1])
        if kind not in self._kinds:
            value: list[Any] = (
                [_TOOL] if name == "tools" else [{"title": "penstockdocument", "text": "penstockdocument"}]
            )
            messages = [*([_neighbour("system")] if system else []), _neighbour("user"), _neighbour("assistant")]
            text = self._render(Conversation(messages=messages, **{name: value}, kwargs=json.loads(given[1] or "{}")))  # type: ignore[arg-type]
            word = "penstocktool" if name == "tools" else "penstockdocument"
            self._kinds[kind] = {name: WHOLE if text is None or word in text else ABSENT}
        return self._kinds[kind][name] != ABSENT


# Fields of a message, and messages of made-up words with the same fields


def _fields(message: Message) -> tuple[Shape, list[tuple[str, list[str]]]]:
    """What the fields are made of, and the words of each: content, reasoning, calls, and other texts of the assistant."""
    content = message.get("content")
    if type(content) is str and _LABELS.issuperset(message) and "</think>" not in content:  # by far the most common one
        return (_TEXT, [("content", [content])]) if content and not content.isspace() else (_EMPTY, [])
    shape: list[tuple[str, Any]] = []
    fields: list[tuple[str, list[str]]] = []
    if type(content) is str and not content:
        shape.append(("content", ""))
    elif "content" in message:
        for field, form, words in _content(content):
            shape.append((field, form))
            if form:
                fields.append((field, words))
    for name in _REASONING:
        if name in message and isinstance(thought := message[name], str) and thought.strip():
            shape.append((name, "text"))
            fields.append((name, [thought]))
            break
    if isinstance(calls := message.get("tool_calls"), list) and calls:
        functions = [_function(call) for call in calls]
        given = [function.get("arguments") for function in functions]
        shape.append(("tool_calls", (min(len(calls), 2), type(given[0]).__name__)))
        said = [function["name"] for function in functions if isinstance(function.get("name"), str)]
        _collect(given, said)
        fields.append(("tool_calls", said))
    if message.get("role") == "assistant":
        for name, value in message.items():
            if name not in _KNOWN and isinstance(value, str) and len(value.split(None, _MANY_WORDS)) >= _MANY_WORDS:
                shape.append((name, "text"))
                fields.append((name, [value]))
    return tuple(shape), fields


_LABELS = frozenset(
    ("role", "content", "name", "tool_call_id", "id", "train", "weight")
)  # of a message with no other text
_TEXT: Shape = (("content", "text"),)
_EMPTY: Shape = (("content", ""),)


def _content(content: Any) -> Iterator[tuple[str, str | None, list[str]]]:
    """(field, form, words); form "" where nothing is said, None for null."""
    if isinstance(content, str):
        thought, tag, answer = content.rpartition("</think>")
        if tag:
            thought = thought.strip().removeprefix("<think>").strip()
            yield "content <think>", "think" if thought else "", [thought]
        yield "content", "text" if answer.strip() else "", [answer]
    elif isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts:
            yield "content", "part", [text for text in texts if text.strip()]
        for kind in sorted(
            {str(part.get("type")) for part in content if isinstance(part, dict) and "text" not in part}
        ):
            yield f"content[{kind}]", "part", []
    elif isinstance(content, dict):
        yield "content", "object", _collect(content, [])
    else:
        yield "content", None, []


def _made_up(role: str, shape: Shape) -> tuple[Message, dict[str, list[str]]]:
    """A message with these fields, and the words of each."""
    message: Message = {"role": role}
    words: dict[str, list[str]] = {}
    for number, (name, form) in enumerate(shape):
        said = f'penstock{number}begin "two" <b>é</b>\\ penstock{number}middle\npenstock{number}end'
        words[name] = [said]
        if name == "content <think>":
            message["content"] = f"<think>\n{said if form else ''}\n</think>\n\n"
        elif name == "tool_calls":
            message[name], words[name] = _made_up_calls(*form)
        elif form is None:
            message["content"] = None
        elif name == "content" and form in ("text", ""):
            message["content"] = message.get("content", "") + (said if form else "")
        elif name == "content" and form == "object":
            message["content"] = {"penstockkey": said}
        elif form == "part":
            part = {"type": "text", "text": said} if name == "content" else {"type": name[len("content[") : -1]}
            message.setdefault("content", []).append(part)
            words[name] = [said] if name == "content" else []
        else:
            message[name] = said
        if not form:
            del words[name]
    return message, words


def _made_up_calls(count: int, arguments: str) -> tuple[list[Any], list[str]]:
    calls: list[Any] = []
    words: list[str] = []
    for number in range(count):
        said = f"penstockcall{number}name", f"penstockcall{number}value"
        given: Any = {"penstockargument": said[1]}
        given = json.dumps(given) if arguments == "str" else given
        function = {"name": said[0], "arguments": given}
        calls.append({"type": "function", "id": f"call{number:05}", "function": function})
        words += said
    return calls, words


_TOOL = {
    "type": "function",
    "function": {"name": "penstocktool", "description": "Made up.", "parameters": {"type": "object", "properties": {}}},
}


def _neighbour(role: str) -> Message:
    more = {"name": "penstocktool", "tool_call_id": "call00000"} if role == "tool" else {}
    return {"role": role, "content": f"neighbour of the role {role}", **more}


def _before(role: str | None, then: str) -> list[Message]:
    """The beginning of a conversation, up to a message of this role before one of the role `then`."""
    if role is None:
        return []
    calls = {**_neighbour("assistant"), "tool_calls": _made_up_calls(1, "dict")[0]}
    if role == "tool":
        return [_neighbour("user"), calls, _neighbour("tool")]
    if role == "assistant":
        return [_neighbour("user"), calls if then == "tool" else _neighbour("assistant")]
    return [_neighbour(role)]


# Words in a rendering


def _in_order(messages: list[Message], text: str) -> int | None:
    """Characters of the assistant, if every message is nothing but text and all of it stands in the rendering, one after another."""
    start = said = 0
    for message in messages:
        content = message.get("content")
        if type(content) is not str or not _LABELS.issuperset(message):
            return None
        at = text.find(content, start)
        if at < 0:
            at = text.find(content.strip(), start)
            if at < 0:
                return None
            start = at + len(content.strip())
        else:
            start = at + len(content)
        if message.get("role") == "assistant":
            said += len(content)
    return said


def _end(words: str, text: str, start: int) -> int:
    """Where words end that begin at `start` or behind it; where they stand before it, `start`; -1 where they are not printed."""
    words = words.strip()
    at = text.find(words, start)
    if at >= 0:
        return at + len(words)
    return start if _printed(words, text) else -1


def _printed(words: str, text: str) -> bool:
    """Whether words occur, as they are or as JSON writes them, whatever white space is around them."""
    words = words.strip()
    if words in text:
        return True
    escaped = json.dumps(words, ensure_ascii=False)[1:-1]
    return escaped in text or json.dumps(words)[1:-1] in text


def _state(words: list[str], text: str) -> str:
    if all(_printed(word, text) for word in words):
        return WHOLE
    pieces = [piece for word in words for piece in word.split() if "penstock" in piece]
    text = text.lower()
    return ALTERED if all(piece in text for piece in pieces) else ABSENT


def _function(call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else {}
    return function if isinstance(function, dict) else {}


def _collect(value: Any, found: list[str]) -> list[str]:
    """All strings in a value, keys excepted, up to a number."""
    if type(value) is str:
        if value and len(found) < _MOST_LEAVES:
            found.append(value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _collect(inner, found)
    return found

"""Which conversation does a record hold?  One reader per way of writing it down; what is in order already is shared, not copied.

A reader is called for every record.  It never changes the record, and what it returns may share parts with it: change neither.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.keys import kind, one_key, query_pair, text_under, value_under
from penstock.templates.roles import CALL, find_role, role_names, train_flag
from penstock.templates.samples import check_choice
from penstock.templates.tools import ARGUMENTS, read_calls, read_json, read_list, read_tools, without_nulls
from penstock.types import Record

__all__ = ["SHAPES", "Conversation", "Message", "Reader", "train_flag"]

Message = dict[str, Any]

_LIST = "a list of {role, content}"
_CALLS = ("tool_calls", "function_call")
_ANY_CALL = frozenset(_CALLS)
# A message may do without content where one of these speaks for it.
_INSTEAD = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "audio")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given.  No messages: nothing to train."""

    messages: list[Message]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)  # the row's own chat_template_kwargs
    prompt_length: int | None = None  # messages before the completion; None where the shape knows no such border


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Record → Conversation.  A key left at None has the name that is usual for the shape.

    content_parts: "list" hands lists of parts on, "text" joins their texts to one string.
    nulls: "drop" keys of a message that hold null, "deep" in tools and calls too, or "keep" all.
    tool_arguments: "parse" JSON text to a dict (what most chat templates and transformers expect), "text", or "as_is".
    """

    version = 1  # raise when the same record gives another conversation

    shape: str = "messages"
    messages_key: str | None = None
    role_key: str | None = None
    content_key: str | None = None
    instruction_key: str = "instruction"
    input_key: str | None = None
    output_key: str | None = None
    history_key: str = "history"
    tool_key: str = "tools"
    system_key: str | Sequence[str] | None = ("system", "system_prompt")
    documents_key: str = "documents"
    kwargs_key: str = "chat_template_kwargs"
    role_map: Mapping[str, str | Sequence[str]] | None = None
    tool_arguments: str = "parse"
    content_parts: str = "list"
    nulls: str = "drop"
    separator: str = "\n\n"  # between instruction and input
    _names: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, known in (
            ("shape", tuple(SHAPES)),
            ("tool_arguments", ARGUMENTS),
            ("content_parts", ("list", "text")),
            ("nulls", ("drop", "deep", "keep")),
        ):
            check_choice(name, getattr(self, name), known)
        object.__setattr__(self, "_names", role_names(self.role_map))

    @property
    def names(self) -> Mapping[str, str]:
        """Name in the data → role."""
        return self._names

    def identity(self) -> dict[str, Any]:
        """Everything that changes the conversation, as plain JSON values."""
        plain = {}
        for option in fields(self):
            value = getattr(self, option.name)
            plain[option.name.lstrip("_")] = list(value) if isinstance(value, tuple) else value
        del plain["role_map"]  # `names` says it whole
        return {"version": self.version, **plain}

    def __call__(self, record: Record, number: int | None = None) -> Conversation:
        """`number` goes into errors: which of the records handed over."""
        try:
            messages, prompt_length = SHAPES[self.shape](self, record)
            system = self._system(record)
            if system is not None:
                messages = self._with_system(messages, system)
                prompt_length = None if prompt_length is None else prompt_length + 1
            tools = read_tools(record.get(self.tool_key), self.tool_key)
            if self.nulls == "deep" and tools is not None:
                tools = without_nulls(tools)
            return Conversation(
                messages=messages,
                tools=tools,
                documents=read_list(record.get(self.documents_key), f"key {self.documents_key!r}"),
                kwargs=self._kwargs(record),
                prompt_length=prompt_length,
            )
        except TemplateError as error:
            raise TemplateError(str(error), record=number) from error

    def listed(
        self, value: Any, key: str, role_key: str | None = None, content_key: str | None = None
    ) -> list[Message]:
        """The messages under a key; without role_key, each message is looked at to find how it is written."""
        if isinstance(value, str):
            value = read_json(value, f"key {key!r}")
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list | tuple):
            raise TemplateError(f"key {key!r} is {kind(value)}, expected {_LIST}")
        if role_key == "role" and content_key == "content":
            names = self._names
            spoken = [m for m in value if type(m) is dict and len(m) == 2 and type(m.get("content")) is str]
            spoken = [m for m in spoken if type(role := m.get("role")) is str and names.get(role) == role]
            if len(spoken) == len(value):
                return spoken  # by far the most common one
        messages: list[Message] = []
        for place, message in enumerate(value):
            if not isinstance(message, dict):
                raise TemplateError(f"{key}[{place}] is {kind(message)}, expected a dict with role and content")
            role, content = role_key or _written(message), content_key
            if role is None:
                messages.extend(self._pair(message, f"{key}[{place}]"))
                continue
            content = content or ("value" if role == "from" else "content")
            messages.append(self._message(message, role, content, key, place))
        return messages

    def _message(self, message: Message, role_key: str, content_key: str, key: str, place: int) -> Message:
        name, content = message.get(role_key), message.get(content_key)
        in_order = type(content) is str and type(name) is str and self._names.get(name) == name
        if in_order and role_key == "role" and content_key == "content":
            if len(message) == 2:
                return message  # by far the most common one
            if _ANY_CALL.isdisjoint(message) and not any(value is None for value in message.values()):
                return message
        what = f"{key}[{place}]"
        role = find_role(name, self._names, what)
        renamed = {role_key: "role", content_key: "content"}
        new: Message = {}
        for old, value in message.items():
            if old in renamed or (old not in ("role", "content") and (value is not None or self.nulls == "keep")):
                new[renamed.get(old, old)] = value
        new["role"] = role
        if role == CALL:
            return self._called(new, what)
        self._calls(new, what)
        if isinstance(content, list):
            self._parts(new, content, what)
        elif not isinstance(content, str):
            self._check_content(new, content, content_key, what)
        return new

    def _calls(self, message: Message, what: str) -> None:
        """`tool_calls` in order; the older `function_call` becomes one of them."""
        given = next((name for name in _CALLS if message.get(name) is not None), None)
        if given is None:
            return
        calls = read_calls(message[given], f"{what}.{given}", arguments=self.tool_arguments)
        if calls is not None and self.nulls == "deep":
            calls = without_nulls(calls)
        place = {name: "tool_calls" if name == given else name for name in message}
        for old, new in place.items():
            value = message.pop(old)  # taken out and put back, so that the order of keys stays
            if old != given:
                message[new] = value
            elif calls is not None:
                message[new] = calls

    def _called(self, message: Message, what: str) -> Message:
        """A call written as content: JSON text, perhaps after a thought."""
        content = message.pop("content", None)
        thought = ""
        if isinstance(content, str) and (end := content.find("</think>")) >= 0:
            thought, content = content[: end + 8], content[end + 8 :].strip()
        calls = read_calls(content, what, arguments=self.tool_arguments)
        if calls is None:
            raise TemplateError(f"{what} is a tool call without content, expected JSON text of {{name, arguments}}")
        return {**message, "role": "assistant", "content": thought, "tool_calls": calls}

    def _parts(self, message: Message, parts: list[Any], what: str) -> None:
        """Content in parts.  LLaMA-Factory writes `value`, with reasoning and calls as parts; others write `text`."""
        for part in parts:
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise TemplateError(
                    f"{what} has a part that is {str(part)[:60]!r}, expected {{'type': 'text', 'text': …}}"
                )
        if any("value" in part and part["type"] in ("text", "reasoning", "tool_call") for part in parts):
            self._values(message, parts, what)
        elif self.content_parts == "text":
            message["content"] = _joined(parts, "text", what)

    def _values(self, message: Message, parts: list[Message], what: str) -> None:
        message["content"] = _joined(
            [part for part in parts if part["type"] not in ("reasoning", "tool_call")], "value", what
        )
        if thoughts := [part for part in parts if part["type"] == "reasoning"]:
            message["reasoning_content"] = _joined(thoughts, "value", what)
        if values := [part.get("value") for part in parts if part["type"] == "tool_call"]:
            calls = (read_calls(value, what, arguments=self.tool_arguments) or [] for value in values)
            message["tool_calls"] = [call for some in calls for call in some]

    def _check_content(self, message: Message, content: Any, content_key: str, what: str) -> None:
        if content is None and any(message.get(name) for name in _INSTEAD):
            return
        if isinstance(content, dict) and message["role"] in ("tool", "ipython", "environment"):
            return  # a result as an object: templates print it as JSON
        found = "is missing" if "content" not in message else f"is {kind(content)}"
        raise TemplateError(
            f"{what} ({message['role']}): {content_key!r} {found}, expected a string, a list of parts, or tool_calls instead"
        )

    def _pair(self, message: Message, what: str) -> Iterable[Message]:
        """{human: …, assistant: …}: the keys are the roles."""
        known = [key for key in message if key in self._names or key.lower() in self._names]
        if not known or not all(isinstance(message[key], str) for key in known):
            raise TemplateError(
                f"{what} has the keys {sorted(message)}, expected role and content, from and value, or roles as keys; "
                f"name them with role_key= and content_key="
            )
        turns = (({"role": key, "content": message[key]}, key) for key in known)
        return [self._message(turn, "role", "content", f"{what}.{key}", 0) for turn, key in turns]

    def _system(self, record: Record) -> str | None:
        if self.system_key is None:
            return None
        key = self.system_key if isinstance(self.system_key, str) else one_key(record, self.system_key)
        text = record.get(key) if key is not None else None
        if text is None or text == "" or text != text:
            return None
        if not isinstance(text, str):
            raise TemplateError(f"key {key!r} is {kind(text)}, expected a string; system_key=None ignores it")
        return text

    def _with_system(self, messages: list[Message], text: str) -> list[Message]:
        if messages and messages[0].get("role") in ("system", "developer"):
            raise TemplateError(
                "the conversation begins with a system message, and the record has another one under system_key; "
                "pass system_key=None to ignore that"
            )
        return [{"role": "system", "content": text}, *messages]

    def _kwargs(self, record: Record) -> dict[str, Any]:
        given = record.get(self.kwargs_key)
        if isinstance(given, str) and given:
            given = read_json(given, f"key {self.kwargs_key!r}")
        if not given:
            return {}
        if not isinstance(given, dict):
            raise TemplateError(f"key {self.kwargs_key!r} is {kind(given)}, expected a dict")
        return given if self.nulls == "keep" else {key: value for key, value in given.items() if value is not None}


def _written(message: Message) -> str | None:
    """Under which key a message names its role; None where the roles are the keys."""
    return "role" if "role" in message else "from" if "from" in message else None


def _joined(parts: list[Message], key: str, what: str) -> str:
    texts = [part.get(key) for part in parts]
    for part, text in zip(parts, texts, strict=True):
        if not isinstance(text, str):
            raise TemplateError(f"{what} has a part of type {part['type']!r} without {key!r}, expected text only")
    return "".join(map(str, texts))


_Read = tuple[list[Message], int | None]


def _messages(reader: Reader, record: Record) -> _Read:
    key = reader.messages_key or "messages"
    role, content = reader.role_key or "role", reader.content_key or "content"
    return reader.listed(value_under(record, key, "messages_key", expected=_LIST), key, role, content), None


def _sharegpt(reader: Reader, record: Record) -> _Read:
    key = reader.messages_key or one_key(record, ("conversations", "conversation")) or "conversations"
    return reader.listed(
        value_under(record, key, "messages_key", expected=_LIST), key, reader.role_key, reader.content_key
    ), None


def _alpaca(reader: Reader, record: Record) -> _Read:
    input_key, output_key = reader.input_key or "input", reader.output_key or "output"
    asked = [text_under(record, reader.instruction_key, "instruction_key")]
    asked.append(text_under(record, input_key, "input_key") if record.get(input_key) is not None else "")
    answer = text_under(record, output_key, "output_key")
    messages: list[Message] = []
    for place, turn in enumerate(record.get(reader.history_key) or ()):
        if not isinstance(turn, list | tuple) or len(turn) != 2 or not all(isinstance(side, str) for side in turn):
            raise TemplateError(f"{reader.history_key}[{place}] is {str(turn)[:60]!r}, expected [question, answer]")
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    messages.append({"role": "user", "content": reader.separator.join(filter(None, asked))})
    messages.append({"role": "assistant", "content": answer})
    return messages, len(messages) - 1


def _prompt_completion(reader: Reader, record: Record) -> _Read:
    output_key = reader.output_key or one_key(record, ("completion", "response")) or "completion"
    return _two_sides(reader, record, reader.input_key or "prompt", output_key)


def _query_response(reader: Reader, record: Record) -> _Read:
    return _two_sides(reader, record, *query_pair(record, reader.input_key, reader.output_key))


def _two_sides(reader: Reader, record: Record, input_key: str, output_key: str) -> _Read:
    """Each side a string, one message or a list of messages."""
    prompt, completion = value_under(record, input_key, "input_key"), value_under(record, output_key, "output_key")
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else reader.listed(prompt, input_key)
    after = (
        [{"role": "assistant", "content": completion}]
        if isinstance(completion, str)
        else reader.listed(completion, output_key)
    )
    return before + after, len(before)


SHAPES: dict[str, Callable[[Reader, Record], _Read]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
    "query_response": _query_response,
}

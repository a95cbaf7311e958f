"""Conversations, and how they are read from records.  What needs no change is shared with the record, not copied."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any, Protocol

from penstock.errors import TemplateError
from penstock.settings import setting
from penstock.templates.fields import (
    ARGUMENTS,
    CALL,
    are_ready,
    check_choice,
    find_role,
    kind,
    one_key,
    read_calls,
    read_json,
    read_list,
    read_tools,
    role_names,
    without_nulls,
)
from penstock.templates.flags import TRAIN_DETAIL, details_of_parts, has_flag
from penstock.types import Record

Message = dict[str, Any]
Read = tuple[list[Message], int | None]  # messages, and how many are before the completion

LIST = "a list of {role, content}"
# A message may lack content if it has one of these.
_INSTEAD = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "audio")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given.  No messages: nothing to train."""

    messages: list[Message]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)  # the row's own chat_template_kwargs
    # Messages before the completion; None if the shape has no such border.
    prompt_length: int | None = None
    media: list[Any] = field(
        default_factory=list
    )  # what the bare media parts of the messages stand for, in their order


class ReadsConversations(Protocol):
    """What makes a conversation of a record."""

    @property
    def names(self) -> Mapping[str, str]:
        """Name in the data → role; {} if every role is passed on."""
        ...

    @property
    def nulls(self) -> str: ...
    def identity(self) -> dict[str, Any]: ...
    def __call__(self, record: Record, number: int | None = None) -> Conversation: ...


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Record → Conversation.  A key left at None has the name that is usual for the shape."""

    version = 1  # raise when the same record gives another conversation

    shape: str = "messages"
    messages_key: str | None = setting("column with the messages", None)
    role_key: str | None = setting("key of a message's role", None)
    content_key: str | None = setting("key of a message's content", None)
    instruction_key: str = setting("column with the instruction", "instruction")
    input_key: str | None = setting("column with the input of an instruction", None)
    output_key: str | None = setting("column with the answer", None)
    history_key: str = setting("column with earlier turns", "history")
    tool_key: str = setting("column with the tools", "tools")
    system_key: str | Sequence[str] | None = setting(
        "column with a system prompt",
        (
            "system",
            "system_prompt",
        ),
    )
    documents_key: str = setting("column with documents", "documents")
    kwargs_key: str = setting(
        "column with a record's own variables for the chat template", "chat_template_kwargs"
    )
    role_map: Mapping[str, str | Sequence[str]] | None = setting(
        "role → other names of this role", None
    )
    tool_arguments: str = setting(
        "arguments of tool calls: parse (JSON text becomes a mapping), text or as_is", "parse"
    )
    content_parts: str = setting(
        "content in parts: list passes the list to the template, text joins it", "list"
    )
    nulls: str = setting(
        "keys of a message that hold null: drop, deep (in tools and calls too) or keep", "drop"
    )
    separator: str = setting("text between instruction and input", "\n\n")

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, tuple(_readers()))
        check_choice("tool_arguments", self.tool_arguments, ARGUMENTS)
        check_choice("content_parts", self.content_parts, ("list", "text"))
        check_choice("nulls", self.nulls, ("drop", "deep", "keep"))
        assert self.names  # refuses a wrong role_map now

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Name in the data → role."""
        return role_names(self.role_map)

    def identity(self) -> dict[str, Any]:
        """Everything that changes the conversation, as plain JSON values."""
        options = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.name != "role_map"
        }
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
        }
        return {"version": self.version, **plain, "names": dict(self.names)}

    def __call__(self, record: Record, number: int | None = None) -> Conversation:
        """Read a record.  `number` goes into errors: which of the records that were given."""
        try:
            messages, prompt_length = _readers()[self.shape](self, record)
            if (system := self._system(record)) is not None:
                if messages and messages[0].get("role") in ("system", "developer"):
                    raise TemplateError(
                        "the conversation begins with a system message, and the record has another one under system_key; "
                        "pass system_key=None to ignore that"
                    )
                messages = [{"role": "system", "content": system}, *messages]
                prompt_length = None if prompt_length is None else prompt_length + 1
            tools = read_tools(record.get(self.tool_key), self.tool_key)
            return Conversation(
                messages=messages,
                tools=without_nulls(tools) if self.nulls == "deep" else tools,
                documents=read_list(record.get(self.documents_key), f"key {self.documents_key!r}"),
                kwargs=self._kwargs(record),
                prompt_length=prompt_length,
            )
        except TemplateError as error:
            raise TemplateError(str(error), record=number) from error

    def listed(
        self, value: Any, key: str, role_key: str | None = None, content_key: str | None = None
    ) -> list[Message]:
        """The messages under a key; without role_key, each message shows how it is written."""
        if isinstance(value, str):
            value = read_json(value, f"key {key!r}")
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list | tuple):
            raise TemplateError(f"key {key!r} is {kind(value)}, expected {LIST}")
        if role_key == "role" and content_key == "content":
            names = self.names
            ready = [
                m
                for m in value
                if type(m) is dict and len(m) == 2 and type(m.get("content")) is str
            ]
            ready = [
                m for m in ready if type(role := m.get("role")) is str and names.get(role) == role
            ]
            if len(ready) == len(value):
                return ready  # by far the most common case
        messages: list[Message] = []
        for place, message in enumerate(value):
            if not isinstance(message, dict):
                raise TemplateError(
                    f"{key}[{place}] is {kind(message)}, expected a dict with role and content"
                )
            role = role_key or next((name for name in ("role", "from") if name in message), None)
            if role is None:
                messages.extend(self._pair(message, f"{key}[{place}]"))
            else:
                content = content_key or ("value" if role == "from" else "content")
                messages.append(self._message(message, role, content, f"{key}[{place}]"))
        return messages

    def _message(self, message: Message, role_key: str, content_key: str, what: str) -> Message:
        """One message as {role, content, …}; `what` names it in errors."""
        name = message.get(role_key)
        content = message.get(content_key)
        usual = role_key == "role" and content_key == "content" and type(content) is str
        if usual and type(name) is str and self.names.get(name) == name and self._is_ready(message):
            return message
        role = find_role(name, self.names, what)
        renamed = {role_key: "role", content_key: "content"}
        new: Message = {}
        for old, value in message.items():
            if old in renamed or (
                old not in ("role", "content") and (value is not None or self.nulls == "keep")
            ):
                new[renamed.get(old, old)] = value
        new["role"] = role
        if role == CALL:
            return self._called(new, what)
        new = self._with_calls(new, what)
        if isinstance(content, list):
            self._set_parts(new, content, what)
        elif not isinstance(content, str):
            self._check_content(new, content, content_key, what)
        return new

    def _is_ready(self, message: Message) -> bool:
        """Whether a message is written as templates read it: no nulls, and tool calls in order."""
        for key, value in message.items():
            if value is None or key == "function_call":
                return False
            if key == "tool_calls" and (
                self.nulls == "deep" or not are_ready(value, self.tool_arguments)
            ):
                return False
        return True

    def _with_calls(self, message: Message, what: str) -> Message:
        """Return the message with its calls as templates read them, under `tool_calls`.

        Calls under `function_call`, the older key, are renamed; the order of the keys stays.
        """
        key_of_calls = "tool_calls"
        if message.get(key_of_calls) is None:
            key_of_calls = "function_call"
        if message.get(key_of_calls) is None:
            return message
        where = f"{what}.{key_of_calls}"
        calls = read_calls(message[key_of_calls], where, arguments=self.tool_arguments)
        new = {
            "tool_calls" if key == key_of_calls else key: value for key, value in message.items()
        }
        if calls is None:
            del new["tool_calls"]
        else:
            new["tool_calls"] = without_nulls(calls) if self.nulls == "deep" else calls
        return new

    def _called(self, message: Message, what: str) -> Message:
        """A message whose content is a call: JSON text, perhaps after a thought."""
        content = message.pop("content", None)
        thought = ""
        if isinstance(content, str) and (end := content.find("</think>")) >= 0:
            thought = content[: end + 8]
            content = content[end + 8 :].strip()
        calls = read_calls(content, what, arguments=self.tool_arguments)
        if calls is None:
            raise TemplateError(
                f"{what} is a tool call without content, expected JSON text of {{name, arguments}}"
            )
        return {**message, "role": "assistant", "content": thought, "tool_calls": calls}

    def _set_parts(self, message: Message, parts: list[Any], what: str) -> None:
        """Set content in parts.  LLaMA-Factory writes `value`, with reasoning and calls as parts; others write `text`."""
        for part in parts:
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                found = f"{what} has a part that is {str(part)[:60]!r}"
                raise TemplateError(f"{found}, expected {{'type': 'text', 'text': …}}")
        if any(map(has_flag, parts)):
            self._set_flagged_parts(message, parts, what)
            return
        if not any(
            "value" in part and part["type"] in ("text", "reasoning", "tool_call") for part in parts
        ):
            if self.content_parts == "text":
                message["content"] = _joined(parts, "text", what)
            return
        rest = [part for part in parts if part["type"] not in ("reasoning", "tool_call")]
        if all(part["type"] == "text" for part in rest):
            message["content"] = _joined(rest, "value", what)
        else:  # images, video or audio between texts
            texts = [
                {"type": "text", "text": _joined([part], "value", what)}
                if part["type"] == "text"
                else part
                for part in rest
            ]
            message["content"] = texts
        if thoughts := [part for part in parts if part["type"] == "reasoning"]:
            message["reasoning_content"] = _joined(thoughts, "value", what)
        if values := [part.get("value") for part in parts if part["type"] == "tool_call"]:
            calls = (
                read_calls(value, what, arguments=self.tool_arguments) or [] for value in values
            )
            message["tool_calls"] = [call for some in calls for call in some]

    def _set_flagged_parts(self, message: Message, parts: list[Any], what: str) -> None:
        """Set content in parts that say themselves whether they are trained: one text, with the flags as train_detail."""
        if message.get(TRAIN_DETAIL) is not None:
            raise TemplateError(
                f"{what} has {TRAIN_DETAIL}, and parts with flags of their own; keep one of them"
            )
        text, details = details_of_parts(parts, what)
        message["content"] = text
        if details:
            message[TRAIN_DETAIL] = details

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
        """Messages of {human: …, assistant: …}: the keys are the roles."""
        known = [key for key in message if key in self.names or key.lower() in self.names]
        if not known or not all(isinstance(message[key], str) for key in known):
            raise TemplateError(
                f"{what} has the keys {sorted(message)}, expected role and content, from and value, or roles as keys; "
                f"name them with role_key= and content_key="
            )
        turns = [{"role": key, "content": message[key]} for key in known]
        return [
            self._message(turn, "role", "content", f"{what}.{turn['role']}[0]") for turn in turns
        ]

    def _system(self, record: Record) -> str | None:
        """The record's system message, if it has one."""
        if self.system_key is None:
            return None
        key = (
            self.system_key
            if isinstance(self.system_key, str)
            else one_key(record, self.system_key)
        )
        text = record.get(key) if key is not None else None
        if text is None or text == "" or text != text:  # != : NaN
            return None
        if not isinstance(text, str):
            raise TemplateError(
                f"key {key!r} is {kind(text)}, expected a string; system_key=None ignores it"
            )
        return text

    def _kwargs(self, record: Record) -> dict[str, Any]:
        """Return the record's own variables for the chat template."""
        given = record.get(self.kwargs_key)
        if isinstance(given, str) and given:
            given = read_json(given, f"key {self.kwargs_key!r}")
        if not given:
            return {}
        if not isinstance(given, dict):
            raise TemplateError(f"key {self.kwargs_key!r} is {kind(given)}, expected a dict")
        return (
            given
            if self.nulls == "keep"
            else {key: value for key, value in given.items() if value is not None}
        )


def _joined(parts: list[Message], key: str, what: str) -> str:
    """The texts of parts as one text."""
    for part in parts:
        if not isinstance(part.get(key), str):
            raise TemplateError(
                f"{what} has a part of type {part['type']!r} without {key!r}, expected text only"
            )
    return "".join(part[key] for part in parts)


@cache
def _readers() -> "dict[str, Callable[[Reader, Record], Read]]":
    from penstock.templates.shapes import shapes  # imports this module

    return {shape.name: shape.reads for shape in shapes().values() if shape.reads is not None}

"""A session on its way to a record: its messages, its tools, and what of it is left out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

Message = dict[str, Any]


class UnknownTrace(ValueError):
    """Something in a file of traces that is not known; the text names it and its line."""


@dataclass(frozen=True, slots=True)
class Event:
    """A JSON object of a file, and its line, counted from 1."""

    line: int
    value: dict[str, Any]

    def get(self, key: str) -> Any:
        return self.value.get(key)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return the object under a key; refuse anything else."""
        found = self.value.get(key)
        if not isinstance(found, dict):
            raise UnknownTrace(
                f"line {self.line}: {key!r} is {type(found).__name__}, expected an object"
            )
        return found


@dataclass(slots=True)
class Session:
    """A conversation that is put together from events."""

    harness: str
    line: int = 1  # at which it begins
    session_id: str | None = None
    parent_session_id: str | None = None  # of a sub-agent
    model: str | None = None
    messages: list[Message] = field(default_factory=list)
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name
    left_out: Counter[str] = field(default_factory=Counter)  # events, by their kind
    reasoning: list[str] = field(default_factory=list)  # that waits for its turn
    call_names: dict[str, str] = field(default_factory=dict)  # of tools, by the id of a call

    def say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def answer(
        self,
        content: str = "",
        *,
        reasoning: Sequence[str] = (),
        calls: Sequence[dict[str, Any]] = (),
        joins: bool = True,
        train: bool = True,
    ) -> None:
        """Add to the assistant's turn, or begin one.  joins: an event may be a part of the turn before."""
        thoughts = [*self.reasoning, *reasoning]
        self.reasoning = []
        if not content and not thoughts and not calls:
            return
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or not joins:
            last = {"role": "assistant", "content": ""}
            self.messages.append(last)
        if thoughts:
            _append(last, "reasoning_content", thoughts)
        if content:
            _append(last, "content", [content])
        if calls:
            last.setdefault("tool_calls", []).extend(calls)
        if not train:
            last["train"] = False
        for call in calls:
            self.call_names[call["id"]] = call["function"]["name"]

    def result(self, call_id: str, content: str, *, name: str | None = None) -> None:
        """Add what a tool has answered."""
        if not isinstance(call_id, str) or not isinstance(name, str | None):
            raise UnknownTrace(
                f"line {self.line}: a result of a tool in this session has the id {call_id!r} and the name {name!r}, expected "
                f"text for both"
            )
        message = {"role": "tool", "tool_call_id": call_id, "content": content}
        found = name or self.call_names.get(call_id)
        if found:
            message["name"] = found
        self.messages.append(message)

    def add_tools(self, tools: Any) -> None:
        """Take the schemas of tools, in the forms that harnesses write them."""
        for tool in tools if isinstance(tools, list) else ():
            found = tool_schema(tool)
            if found is not None:
                self.tools[found["function"]["name"]] = found

    def record(self) -> dict[str, Any]:
        """Return the session as a record.  Tools that were called and have no schema are named."""
        called = {
            call["function"]["name"]
            for message in self.messages
            for call in message.get("tool_calls", ())
        }
        found: dict[str, Any] = {"messages": self.messages}
        if self.tools:
            found["tools"] = list(self.tools.values())
        found |= {"harness": self.harness, "session_id": self.session_id, "model": self.model}
        if self.parent_session_id is not None:
            found["parent_session_id"] = self.parent_session_id
        missing = sorted(called - self.tools.keys())
        if missing:
            found["tools_without_schema"] = missing
        if self.left_out:
            found["left_out"] = dict(sorted(self.left_out.items()))
        return found


def _append(message: Message, key: str, parts: Iterable[str]) -> None:
    before = [message[key]] if message.get(key) else []
    message[key] = "\n\n".join([*before, *parts])


def call(call_id: Any, name: Any, arguments: Any, line: int) -> dict[str, Any]:
    """Return a call of a tool."""
    if not isinstance(call_id, str) or not isinstance(name, str) or not call_id or not name:
        raise UnknownTrace(
            f"line {line}: a call of a tool has the id {call_id!r} and the name {name!r}, expected text for both"
        )
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": as_arguments(arguments)},
    }


def as_arguments(value: Any) -> Any:
    """Return the arguments of a call: an object where it is one, also if it is written as JSON text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def tool_schema(tool: Any) -> dict[str, Any] | None:
    """Return the schema of a tool in the form that chat templates read; None for a bare name."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    assert isinstance(inner, dict)
    name = inner.get("name")
    if not isinstance(name, str):
        return None
    parameters = inner.get("parameters") or inner.get("input_schema") or inner.get("inputSchema")
    if not isinstance(parameters, dict):
        return None
    function = {"name": name, "parameters": parameters}
    if isinstance(inner.get("description"), str):
        function["description"] = inner["description"]
    return {"type": "function", "function": function}


TEXTS = ("text", "input_text", "output_text")


def text_of(content: Any, line: int, *, others: Sequence[str] = ()) -> str:
    """Return the text of a content: a string, or a list of parts.  others: kinds of parts that are read elsewhere."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    texts = []
    for part in parts_of(content, line):
        kind = part.get("type")
        if kind in TEXTS:
            text = part.get("text")
            if not isinstance(text, str):
                raise UnknownTrace(f"line {line}: a part of text holds {type(text).__name__}")
            if text.strip():
                texts.append(text.strip())
        elif kind not in others:
            raise UnknownTrace(
                f"line {line}: a message has a part of the kind {kind!r}, and only text, thinking and calls of tools are read"
            )
    return "\n".join(texts)


def parts_of(content: Any, line: int) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a content that is a list; none of a string."""
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise UnknownTrace(
            f"line {line}: the content of a message is {type(content).__name__}, expected text or a list of parts"
        )
    yield from content


def thoughts_of(content: Any, line: int, kinds: Sequence[str] = ("thinking",)) -> list[str]:
    """Return the reasoning in a content.  Encrypted reasoning has no text."""
    found = []
    for part in parts_of(content, line):
        if part.get("type") in kinds:
            text = part.get("thinking") or part.get("text")
            if isinstance(text, str) and text.strip():
                found.append(text.strip())
    return found

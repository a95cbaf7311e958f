"""Conversations that are one JSON object each: ATIF trajectories, OpenAI's Harmony, and trajectories of SWE-smith."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from penstock.extras.traces.session import Event, Session, UnknownTrace, call, parts_of, text_of

ReadDocument = Callable[[Event], list[Session]]

# ATIF

_ATIF_VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(8))


def read_atif(event: Event) -> list[Session]:
    """A trajectory, and those of its sub-agents that stand in the same file."""
    version = event.get("schema_version")
    if version not in _ATIF_VERSIONS:
        raise UnknownTrace(
            f"line {event.line}: 'schema_version' is {version!r}, expected one of {_ATIF_VERSIONS[0]} … {_ATIF_VERSIONS[-1]}"
        )
    agent = event.get("agent") if isinstance(event.get("agent"), dict) else {}
    found = event.get("session_id") or event.get("trajectory_id")
    session = Session("atif", event.line, found)
    session.model = agent.get("model_name")
    session.add_tools(agent.get("tool_definitions"))
    steps = event.get("steps")
    if not isinstance(steps, list):
        raise UnknownTrace(f"line {event.line}: 'steps' is {type(steps).__name__}, expected a list")
    for step in steps:
        _add_step(session, step, event.line)
    if event.get("continued_trajectory_ref"):
        session.left_out["continuation in another file"] += 1
    sessions = [session]
    for inner in event.get("subagent_trajectories") or ():
        for of_agent in read_atif(Event(event.line, inner)):
            of_agent.parent_session_id = of_agent.parent_session_id or found
            sessions.append(of_agent)
    return sessions


def _add_step(session: Session, step: Any, line: int) -> None:
    """Add a step of a trajectory: the message of the agent, the user or the system, and then what tools have returned."""
    if not isinstance(step, dict):
        raise UnknownTrace(f"line {line}: a step is {type(step).__name__}, expected an object")
    source = step.get("source")
    text = text_of(step.get("message"), line)
    if source == "agent":
        _add_answer(session, step, text, line)
    elif source in ("user", "system"):
        if text:
            session.say(source, text)
    else:
        where = f"line {line}: step {step.get('step_id')}"
        raise UnknownTrace(f"{where} has the source {source!r}, expected agent, user or system")
    _add_results(session, step, line)


def _add_answer(session: Session, step: Mapping[str, Any], text: str, line: int) -> None:
    """Add what the agent thought, said and called in a step."""
    reasoning = step.get("reasoning_content")
    thought = reasoning.strip() if isinstance(reasoning, str) else ""
    calls = [
        call(each.get("tool_call_id"), each.get("function_name"), each.get("arguments"), line)
        for each in step.get("tool_calls") or ()
    ]
    is_copied = step.get("is_copied_context") is True  # context of an earlier trajectory
    session.answer(
        text,
        reasoning=[thought] if thought else [],
        calls=calls,
        joins=False,
        train=not is_copied,
    )


def _add_results(session: Session, step: Mapping[str, Any], line: int) -> None:
    """Add the results of the tools that a step has called."""
    observation = step.get("observation") or {}
    for result in observation.get("results") or ():
        content = text_of(result.get("content"), line)
        if result.get("subagent_trajectory_ref"):
            session.left_out["reference to a sub-agent"] += 1
        if isinstance(result.get("source_call_id"), str):
            session.result(result["source_call_id"], content)
        elif content:
            session.say("user", content)  # what an agent reads that acts by text


# Harmony

_FUNCTIONS = "functions."
_TOKEN = re.compile(r"<\|(start|message|channel|constrain|end|call|return)\|>")
_TURN = re.compile(
    r"<\|start\|>(?P<head>.*?)<\|message\|>(?P<text>.*?)(?:<\|(?:end|call|return)\|>|\Z)", re.DOTALL
)


def read_harmony(event: Event) -> list[Session]:
    """Return the one session of a conversation: messages as the package openai_harmony writes them, or text with special tokens."""
    messages = _messages_of_harmony(event)
    session = Session("harmony", event.line, event.get("id"))
    num_calls = 0
    for message in messages:
        num_calls += _add_harmony_message(session, message, event.line, num_calls)
    if session.reasoning:  # the conversation ends with it: no answer has taken it
        session.answer(joins=False)
    return [session]


def _messages_of_harmony(event: Event) -> Any:
    """Return the messages of an object, which may have them under `conversation`; those of a text are parsed."""
    inner = event.get("conversation")
    conversation = inner if isinstance(inner, dict) else event.value
    messages = conversation.get("messages")
    if messages is not None:
        return messages
    text = conversation.get("text")
    if not isinstance(text, str) or "<|start|>" not in text:
        raise UnknownTrace(
            f"line {event.line}: neither 'messages' nor a 'text' with <|start|>, expected a conversation in Harmony"
        )
    return list(_parse_harmony(text, event.line))


def _parse_harmony(text: str, line: int) -> Iterator[dict[str, Any]]:
    """Yield the messages of a text with the special tokens of Harmony."""
    rest = _TURN.sub("", text).strip()
    if rest:
        raise UnknownTrace(f"line {line}: {rest[:60]!r} stands outside the messages of Harmony")
    for turn in _TURN.finditer(text):
        head = _TOKEN.sub(" ", turn["head"].replace("<|channel|>", " channel="))
        words = head.split()
        message: dict[str, Any] = {"role": words[0], "content": turn["text"]}
        if "namespace functions" in turn["text"] and words[0] in ("developer", "system"):
            raise UnknownTrace(
                f"line {line}: the tools of this conversation are written as text, which cannot be read back; write it with "
                f"openai_harmony's to_json, where they are schemas"
            )
        for word in words[1:]:
            if word.startswith("channel="):
                message["channel"] = word.removeprefix("channel=")
            elif word.startswith("to="):
                message["recipient"] = word.removeprefix("to=")
        yield message


def _add_harmony_message(session: Session, message: Any, line: int, calls: int) -> int:
    """Add a message; return the number of calls that it makes."""
    if not isinstance(message, Mapping):
        raise UnknownTrace(f"line {line}: a message is {type(message).__name__}")
    author = message.get("author")
    role = message.get("role") or (author.get("role") if isinstance(author, Mapping) else None)
    name = message.get("name") or (author.get("name") if isinstance(author, Mapping) else None)
    channel = message.get("channel")
    recipient = message.get("recipient")
    if role in ("system", "developer"):
        _add_harmony_instructions(session, message.get("content"), line)
        return 0
    text = text_of(message.get("content"), line)
    if role == "user":
        session.say("user", text)
    elif role == "assistant" and isinstance(recipient, str) and recipient.startswith(_FUNCTIONS):
        call_id = f"call_{calls + 1}"
        session.answer(calls=[call(call_id, recipient.removeprefix(_FUNCTIONS), text, line)])
        return 1
    elif role == "assistant" and channel == "analysis" and recipient in (None, "all"):
        session.reasoning.append(text)
    elif role == "assistant" and recipient in (None, "all"):
        session.answer(text, joins=False)
    elif role == "tool" or (isinstance(role, str) and role.startswith(_FUNCTIONS)):
        tool = str(name or role).removeprefix(_FUNCTIONS)
        session.result(_open_call(session, tool, line), text, name=tool)
    else:
        raise UnknownTrace(
            f"line {line}: a message of Harmony has the role {role!r}, the channel {channel!r} and the recipient {recipient!r}; built-in "
            f"tools are not read"
        )
    return 0


def _add_harmony_instructions(session: Session, content: Any, line: int) -> None:
    if isinstance(content, str):
        session.say("system", content.strip())
        return
    for part in [content] if isinstance(content, dict) else parts_of(content, line):
        kind = part.get("type")
        if kind == "system_content":
            session.left_out["system message of Harmony"] += 1  # chat templates write their own
        elif kind == "developer_content" or "instructions" in part:
            text = part.get("instructions")
            if isinstance(text, str) and text.strip():
                session.say("system", text.strip())
            for namespace in (part.get("tools") or {}).values():
                session.add_tools(namespace.get("tools"))
        else:
            session.say("system", text_of([part], line))


def _open_call(session: Session, tool: str, line: int) -> str:
    """Return the id of the first call of a tool that has no result: Harmony names no calls."""
    answered = {message.get("tool_call_id") for message in session.messages}
    for call_id, name in session.call_names.items():
        if name == tool and call_id not in answered:
            return call_id
    raise UnknownTrace(f"line {line}: a result of {tool!r} comes without a call")


# SWE-smith


def read_swe_smith(event: Event) -> list[Session]:
    """A trajectory, whose messages may be written as JSON text."""
    messages = event.get("messages")
    if isinstance(messages, str):
        try:
            messages = orjson.loads(messages)
        except orjson.JSONDecodeError as error:
            raise UnknownTrace(
                f"line {event.line}: 'messages' is text that is not JSON: {error}"
            ) from None
    if not isinstance(messages, list):
        raise UnknownTrace(
            f"line {event.line}: 'messages' is {type(messages).__name__}, expected the messages of a trajectory"
        )
    session = Session("swe_smith", event.line, event.get("traj_id") or event.get("instance_id"))
    session.model = event.get("model")
    session.add_tools(event.get("tools"))
    for message in messages:
        _add_swe_message(session, message, event.line)
    return [session]


def _add_swe_message(session: Session, message: Any, line: int) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("system", "user", "assistant", "tool"):
        raise UnknownTrace(f"line {line}: a message of SWE-smith has the role {role!r}")
    text = text_of(message.get("content"), line)
    if role == "assistant":
        calls = []
        for each in message.get("tool_calls") or ():
            function = each.get("function") or {}
            calls.append(
                call(each.get("id"), function.get("name"), function.get("arguments"), line)
            )
        thought = message.get("reasoning_content")
        session.answer(text, reasoning=[thought] if thought else (), calls=calls, joins=False)
    elif role == "tool":
        call_ids = message.get("tool_call_ids") or [message.get("tool_call_id")]
        session.result(str(call_ids[0]), text, name=message.get("name"))
    else:
        session.say(role, text)


DOCUMENTS: dict[str, ReadDocument] = {
    "atif": read_atif,
    "harmony": read_harmony,
    "swe_smith": read_swe_smith,
}

"""Sessions of Claude Code, Codex, pi, droid and Hermes, which are files of events: one JSON object in a line."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.extras.traces.session import (
    Event,
    Session,
    UnknownTrace,
    call,
    parts_of,
    text_of,
    thoughts_of,
)

# Reads the sessions of one file.  skips_unknown: events of unknown kinds are counted as left out; else they raise UnknownTrace.
ReadSessions = Callable[[Sequence[Event], bool], list[Session]]

_THOUGHTS = ("thinking", "redacted_thinking")
_CALLS = ("tool_use", "server_tool_use")


def _unknown(session: Session, event: Event, what: str, *, skips: bool) -> None:
    """Count an event of an unknown kind, or refuse it."""
    if not skips:
        raise UnknownTrace(
            f"line {event.line}: {session.harness} has no {what} that is known here; pass on_unknown='skip' to leave such events out, "
            f"which counts them"
        )
    session.left_out[what] += 1


# Claude Code

# Kinds of events that are no part of what the model read or wrote.
_CLAUDE_BESIDE = frozenset(
    (
        "summary",
        "attachment",
        "mode",
        "permission-mode",
        "file-history-snapshot",
        "file-history-delta",
        "queue-operation",
        "progress",
        "last-prompt",
        "custom-title",
        "ai-title",
        "agent-name",
        "agent-color",
        "agent-setting",
        "pr-link",
        "tag",
        "worktree-state",
        "content-replacement",
        "rate_limit_event",
        "stream_event",
    )
)
_COMMANDS = (
    "<command-name>",
    "<command-message>",
    "<local-command-caveat>",
    "<local-command-stdout>",
    "<local-command-stderr>",
)


def read_claude_code(events: Sequence[Event], skips_unknown: bool) -> list[Session]:
    """Sub-agents are sessions of their own: events of a side chain, by the agent that they name."""
    sessions: dict[str, Session] = {}
    chains: dict[str, str] = {}  # the side chain of each event, by its id
    for event in events:
        key = _side_chain(event, chains)
        session = sessions.get(key)
        if session is None:
            session = Session("claude_code", event.line)
            sessions[key] = session
        _add_claude_event(session, event, skips_unknown)
    main = sessions.get("")
    for key, session in sessions.items():
        if key:
            session.parent_session_id = session.session_id or (main.session_id if main else None)
            session.session_id = f"{session.session_id}/{key}"
    return [session for session in sessions.values() if session.messages or session is main]


def _side_chain(event: Event, chains: dict[str, str]) -> str:
    """Return which sub-agent an event is of; "" for the main one."""
    chain = ""
    if event.get("isSidechain") is True:
        agent = event.get("agentId")
        before = chains.get(str(event.get("parentUuid")), "")
        chain = agent if isinstance(agent, str) else before or f"line {event.line}"
    uuid = event.get("uuid")
    if isinstance(uuid, str):
        chains[uuid] = chain
    return chain


def _add_claude_event(session: Session, event: Event, skips_unknown: bool) -> None:
    kind = event.get("type")
    found = event.get("sessionId") or event.get("session_id")
    if isinstance(found, str):
        session.session_id = found
    if kind == "user":
        _add_claude_user(session, event)
    elif kind == "assistant":
        _add_claude_assistant(session, event)
    elif kind == "system":
        if event.get("subtype") == "init":
            session.add_tools(event.get("tools"))
            session.model = event.get("model") or session.model
        else:
            session.left_out[f"system: {event.get('subtype')}"] += 1
    elif kind == "result":
        session.left_out["result"] += 1  # it repeats the last turn
    elif kind in _CLAUDE_BESIDE:
        session.left_out[str(kind)] += 1
    else:
        _unknown(session, event, f"event of the kind {kind!r}", skips=skips_unknown)


def _add_claude_user(session: Session, event: Event) -> None:
    content = event.mapping("message").get("content")
    results = [part for part in parts_of(content, event.line) if part.get("type") == "tool_result"]
    for part in results:
        call_id = part.get("tool_use_id")
        if not isinstance(call_id, str):
            raise UnknownTrace(f"line {event.line}: a result of a tool does not name its call")
        session.result(call_id, text_of(part.get("content"), event.line))
    text = text_of(content, event.line, others=("tool_result",))
    if not text:
        return
    if event.get("isMeta") is True or text.startswith(_COMMANDS):
        session.left_out["local command" if text.startswith(_COMMANDS) else "meta message"] += 1
    else:
        session.say("user", text)


def _add_claude_assistant(session: Session, event: Event) -> None:
    message = event.mapping("message")
    content = message.get("content")
    text = text_of(content, event.line, others=(*_THOUGHTS, *_CALLS))
    is_error = event.get("isApiErrorMessage") is True
    if message.get("model") == "<synthetic>" or is_error:
        session.left_out["message that no model wrote"] += 1
        return
    session.model = message.get("model") or session.model
    calls = [
        call(part.get("id"), part.get("name"), part.get("input"), event.line)
        for part in parts_of(content, event.line)
        if part.get("type") in _CALLS
    ]
    for part in parts_of(content, event.line):
        if part.get("type") == "redacted_thinking":
            session.left_out["encrypted reasoning"] += 1
    session.answer(text, reasoning=thoughts_of(content, event.line), calls=calls)


# droid

_DROID_BESIDE = frozenset(("todo_state", "compaction_state", "session_end", "token_usage"))


def read_droid(events: Sequence[Event], skips_unknown: bool) -> list[Session]:
    session = Session("droid", events[0].line if events else 1)
    for event in events:
        kind = event.get("type")
        if kind == "session_start":
            session.session_id = event.get("id") or session.session_id
        elif kind == "message":
            _add_droid_message(session, event)
        elif kind in _DROID_BESIDE:
            session.left_out[str(kind)] += 1
        else:
            _unknown(session, event, f"event of the kind {kind!r}", skips=skips_unknown)
    return [session]


def _add_droid_message(session: Session, event: Event) -> None:
    message = event.mapping("message")
    if message.get("visibility") == "user_only":
        session.left_out["message for the user only"] += 1
        return
    inner = Event(event.line, {"message": message})
    if message.get("role") == "user":
        _add_claude_user(session, inner)
    elif message.get("role") == "assistant":
        _add_claude_assistant(session, inner)
    else:
        raise UnknownTrace(
            f"line {event.line}: a message of droid has the role {message.get('role')!r}, expected user or assistant"
        )


# Codex

_CODEX_CONTEXT = ("<environment_context>", "<user_instructions>")
_CODEX_BESIDE = frozenset(("turn_context", "event_msg", "compacted", "world_state"))
_CODEX_ITEMS_BESIDE = frozenset(("ghost_snapshot", "compaction", "other"))


def read_codex(events: Sequence[Event], skips_unknown: bool) -> list[Session]:
    session = Session("codex", events[0].line if events else 1)
    for event in events:
        kind = event.get("type")
        if kind == "session_meta":
            _add_codex_start(session, event.mapping("payload"))
        elif kind == "response_item":
            _add_codex_item(session, event, skips_unknown)
        elif kind in _CODEX_BESIDE:
            if kind == "turn_context":
                session.model = event.mapping("payload").get("model") or session.model
            session.left_out[str(kind)] += 1
        else:
            _unknown(session, event, f"event of the kind {kind!r}", skips=skips_unknown)
    if session.reasoning:
        session.answer()
    return [session]


def _add_codex_start(session: Session, payload: dict[str, Any]) -> None:
    session.session_id = payload.get("id") or session.session_id
    session.model = payload.get("model") or session.model
    session.add_tools(payload.get("tools"))
    instructions = payload.get("base_instructions")
    text = instructions.get("text") if isinstance(instructions, dict) else instructions
    if isinstance(text, str) and text.strip():
        session.say("system", text)


def _add_codex_item(session: Session, event: Event, skips_unknown: bool) -> None:
    item = event.mapping("payload")
    kind = item.get("type")
    if kind == "message":
        _add_codex_message(session, event.line, item)
    elif kind == "reasoning":
        thoughts = _codex_thoughts(item, event.line)
        session.reasoning += thoughts
        if not thoughts:
            session.left_out["encrypted reasoning"] += 1
    elif kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments")
        if kind == "custom_tool_call":
            arguments = {"input": item.get("input")}
        session.answer(calls=[call(item.get("call_id"), item.get("name"), arguments, event.line)])
    elif kind == "local_shell_call":
        call_id = item.get("call_id") or item.get("id")
        session.answer(calls=[call(call_id, "local_shell", item.get("action"), event.line)])
    elif kind in ("function_call_output", "custom_tool_call_output"):
        session.result(str(item.get("call_id")), _codex_output(item.get("output"), event.line))
    elif kind in _CODEX_ITEMS_BESIDE:
        session.left_out[str(kind)] += 1
    else:
        _unknown(session, event, f"response item of the kind {kind!r}", skips=skips_unknown)


def _add_codex_message(session: Session, line: int, item: dict[str, Any]) -> None:
    role = item.get("role")
    text = text_of(item.get("content"), line)
    if role == "assistant":
        session.answer(text, joins=False)
        return
    if role not in ("user", "developer", "system"):
        raise UnknownTrace(f"line {line}: a message of codex has the role {role!r}")
    has_prompt = any(message["role"] == "user" for message in session.messages)
    if role == "user" and not has_prompt and text.startswith(_CODEX_CONTEXT):
        session.left_out["context of the environment"] += 1
        return
    session.say("user" if role == "user" else "system", text)


def _codex_thoughts(item: dict[str, Any], line: int) -> list[str]:
    for key, kinds in (("summary", ("summary_text",)), ("content", ("reasoning_text", "text"))):
        thoughts = thoughts_of(item.get(key), line, kinds)
        if thoughts:
            return thoughts
    return []


def _codex_output(output: Any, line: int) -> str:
    if isinstance(output, dict):  # older sessions: {"content": …, "metadata": …}
        output = output.get("content")
    return output if isinstance(output, str) else text_of(output, line)


# pi

_PI_BESIDE = frozenset(
    (
        "thinking_level_change",
        "session_info",
        "custom",
        "custom_message",
        "label",
        "compaction",
        "branch_summary",
    )
)


def read_pi(events: Sequence[Event], skips_unknown: bool) -> list[Session]:
    """A file is a tree of entries.  The session is the branch that ends with the last one; other branches are counted as left out."""
    session = Session("pi", events[0].line if events else 1)
    branch = _last_branch(events)
    for event in events:
        kind = event.get("type")
        if branch is not None and event.get("id") not in branch and kind != "session":
            session.left_out["entry of another branch"] += 1
        elif kind == "session":
            session.session_id = event.get("id") or session.session_id
        elif kind == "model_change":
            session.model = event.get("modelId") or session.model
        elif kind == "message":
            _add_pi_message(session, event)
        elif kind in _PI_BESIDE:
            session.left_out[str(kind)] += 1
        else:
            _unknown(session, event, f"entry of the kind {kind!r}", skips=skips_unknown)
    return [session]


def _last_branch(events: Sequence[Event]) -> set[str] | None:
    """Return the ids of the entries from the last one up to the root; None for a file without a tree."""
    entries = {event.get("id"): event for event in events if event.get("type") != "session"}
    if not any("parentId" in event.value for event in entries.values()):
        return None
    branch: set[str] = set()
    here: Any = next(reversed(entries))
    while isinstance(here, str) and here in entries and here not in branch:
        branch.add(here)
        here = entries[here].get("parentId")
    return branch


def _add_pi_message(session: Session, event: Event) -> None:
    message = event.mapping("message")
    role = message.get("role")
    content = message.get("content")
    line = event.line
    if role == "toolResult":
        name = message.get("toolName")
        session.result(str(message.get("toolCallId")), text_of(content, line), name=name)
    elif role == "user":
        session.say("user", text_of(content, line))
    elif role in ("system", "developer"):
        session.say("system", text_of(content, line))
    elif role == "assistant":
        calls = [
            call(part.get("id"), part.get("name"), part.get("arguments"), line)
            for part in parts_of(content, line)
            if part.get("type") == "toolCall"
        ]
        text = text_of(content, line, others=("thinking", "toolCall"))
        is_whole = message.get("stopReason") not in ("error", "aborted")
        session.model = message.get("model") or session.model
        session.answer(
            text, reasoning=thoughts_of(content, line), calls=calls, joins=False, train=is_whole
        )
    elif role in ("bashExecution", "custom", "branchSummary", "compactionSummary"):
        session.left_out[f"message: {role}"] += 1
    else:
        raise UnknownTrace(f"line {line}: a message of pi has the role {role!r}")


# Hermes


def read_hermes(events: Sequence[Event], skips_unknown: bool) -> list[Session]:
    """A line is a session with all its messages."""
    return [_hermes_session(event) for event in events]


def _hermes_session(event: Event) -> Session:
    messages = event.get("messages")
    if not isinstance(messages, list):
        raise UnknownTrace(
            f"line {event.line}: 'messages' is {type(messages).__name__}, expected the messages of a session of Hermes"
        )
    session = Session("hermes", event.line, event.get("id"), event.get("parent_session_id"))
    session.model = event.get("model")
    session.add_tools(event.get("tools"))
    prompt = event.get("system_prompt")
    has_prompt = any(isinstance(each, dict) and each.get("role") == "system" for each in messages)
    if isinstance(prompt, str) and prompt.strip() and not has_prompt:
        session.say("system", prompt)
    for message in messages:
        _add_hermes_message(session, event.line, message)
    return session


def _add_hermes_message(session: Session, line: int, message: Any) -> None:
    if not isinstance(message, dict):
        raise UnknownTrace(f"line {line}: a message is {type(message).__name__}")
    role = message.get("role")
    content = message.get("content")
    text = text_of(content, line, others=("thinking",))
    if role == "tool":
        name = message.get("name") or message.get("tool_name")
        session.result(str(message.get("tool_call_id") or ""), text, name=name)
    elif role in ("user", "system"):
        session.say(role, text)
    elif role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        thoughts = [reasoning.strip()] if isinstance(reasoning, str) and reasoning.strip() else []
        thoughts = thoughts or thoughts_of(content, line)
        calls = list(_hermes_calls(message.get("tool_calls"), line))
        session.answer(text, reasoning=thoughts, calls=calls, joins=False)
    elif role == "session_meta":
        session.add_tools(message.get("tools"))
        session.left_out["session_meta"] += 1
    else:
        raise UnknownTrace(f"line {line}: a message of Hermes has the role {role!r}")


def _hermes_calls(calls: Any, line: int) -> Iterator[dict[str, Any]]:
    if not isinstance(calls, list | None):
        raise UnknownTrace(
            f"line {line}: 'tool_calls' is {type(calls).__name__}, expected a list of calls"
        )
    for number, each in enumerate(calls or (), start=1):
        function = each.get("function") if isinstance(each, dict) else None
        if not isinstance(function, dict):
            raise UnknownTrace(f"line {line}: a call of a tool has no function")
        name = function.get("name")
        yield call(each.get("id") or f"{name}_{number}", name, function.get("arguments"), line)


HARNESSES: dict[str, ReadSessions] = {
    "claude_code": read_claude_code,
    "codex": read_codex,
    "pi": read_pi,
    "droid": read_droid,
    "hermes": read_hermes,
}


def harness_of(events: Sequence[Event]) -> str:
    """Return which harness has written a file; refuse a file of an unknown one."""
    for event in events:
        kind = event.get("type")
        if kind == "session_start":
            return "droid"
        if kind in ("session_meta", "response_item", "turn_context", "event_msg"):
            return "codex"
        if kind in ("session", "model_change", "thinking_level_change"):
            return "pi"
        has_session = "sessionId" in event.value or "session_id" in event.value
        if kind in ("user", "assistant", "system", "result") and has_session:
            return "claude_code"
        if kind is None and isinstance(event.get("messages"), list):
            return "hermes"
    first = events[0] if events else Event(1, {})
    raise UnknownTrace(
        f"line {first.line}: no event tells which agent has written this file: the first one has the keys "
        f"{', '.join(first.value) or 'none'}; known are {', '.join(HARNESSES)}; name the format if it is one of them"
    )

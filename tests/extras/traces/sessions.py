"""Sessions as each agent writes them: events after the documents of the harnesses, with made-up words."""

import json
from pathlib import Path
from typing import Any

Events = list[dict[str, Any]]


def claude_code() -> Events:
    def event(kind: str, number: int, message: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "type": kind,
            "uuid": f"u{number}",
            "parentUuid": f"u{number - 1}" if number > 1 else None,
            "sessionId": "s-1",
            "cwd": "/work/project",
            "version": "2.1.0",
            "isSidechain": False,
            "userType": "external",
            "timestamp": f"2026-05-01T10:00:{number:02d}.000Z",
            "message": message,
            **more,
        }

    def assistant(number: int, content: list[dict[str, Any]], key: str) -> dict[str, Any]:
        message = {"id": key, "role": "assistant", "model": "claude-x", "content": content}
        return event("assistant", number, message)

    def result(number: int, call: str, content: Any) -> dict[str, Any]:
        part = {"type": "tool_result", "tool_use_id": call, "content": content}
        return event("user", number, {"role": "user", "content": [part]})

    return [
        event("user", 1, {"role": "user", "content": "Fix the failing test."}),
        assistant(2, [{"type": "thinking", "thinking": "Look first.", "signature": "x"}], "m1"),
        assistant(3, [{"type": "text", "text": "I read the test."}], "m1"),
        assistant(
            4,
            [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "a.py"}}],
            "m1",
        ),
        result(5, "t1", "1  assert add(1, 2) == 4"),
        assistant(
            6,
            [
                {"type": "text", "text": "The sum is wrong."},
                {"type": "tool_use", "id": "t2", "name": "Bash", "input": {"command": "pytest"}},
                {"type": "tool_use", "id": "t3", "name": "Bash", "input": {"command": "ls"}},
            ],
            "m2",
        ),
        result(7, "t2", [{"type": "text", "text": "1 failed"}]),
        result(8, "t3", "a.py"),
        assistant(9, [{"type": "text", "text": "Fixed: it is 3."}], "m3"),
        event("user", 10, {"role": "user", "content": [{"type": "text", "text": "Thanks."}]}),
        assistant(11, [{"type": "text", "text": "You are welcome."}], "m4"),
    ]


def codex() -> Events:
    def item(**payload: Any) -> dict[str, Any]:
        return {"timestamp": "2026-05-01T10:00:00Z", "type": "response_item", "payload": payload}

    def text(role: str, kind: str, words: str) -> dict[str, Any]:
        return item(type="message", role=role, content=[{"type": kind, "text": words}])

    return [
        {
            "timestamp": "2026-05-01T10:00:00Z",
            "type": "session_meta",
            "payload": {
                "id": "c-1",
                "cwd": "/work/project",
                "cli_version": "0.90",
                "base_instructions": {"text": "You are a coding agent."},
            },
        },
        {"timestamp": "t", "type": "turn_context", "payload": {"model": "gpt-x", "cwd": "/work"}},
        text("developer", "input_text", "Work in the sandbox."),
        text("user", "input_text", "<environment_context>cwd</environment_context>"),
        text("user", "input_text", "Count the files."),
        {
            "timestamp": "t",
            "type": "event_msg",
            "payload": {"type": "user_message", "message": "x"},
        },
        item(
            type="reasoning",
            summary=[{"type": "summary_text", "text": "List them."}],
            encrypted_content="zzz",
        ),
        item(type="function_call", name="shell", call_id="k1", arguments='{"command": ["ls"]}'),
        item(type="function_call_output", call_id="k1", output="a\nb"),
        item(type="reasoning", summary=[], encrypted_content="zzz"),
        text("assistant", "output_text", "There are two files."),
    ]


def pi() -> Events:
    def entry(number: int, kind: str = "message", **more: Any) -> dict[str, Any]:
        parent = f"e{number - 1}" if number > 1 else None
        return {"type": kind, "id": f"e{number}", "parentId": parent, "timestamp": "t", **more}

    return [
        {"type": "session", "version": 3, "id": "p-1", "timestamp": "t", "cwd": "/work/project"},
        entry(1, "model_change", provider="x", modelId="model-x"),
        entry(2, "thinking_level_change", thinkingLevel="high"),
        entry(3, message={"role": "user", "content": [{"type": "text", "text": "Say hello."}]}),
        entry(
            4,
            message={
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Use the shell."},
                    {"type": "text", "text": "I run echo."},
                    {
                        "type": "toolCall",
                        "id": "k1",
                        "name": "bash",
                        "arguments": {"command": "echo hello"},
                    },
                ],
                "stopReason": "toolUse",
            },
        ),
        entry(
            5,
            message={
                "role": "toolResult",
                "toolCallId": "k1",
                "toolName": "bash",
                "content": [{"type": "text", "text": "hello"}],
                "isError": False,
            },
        ),
        entry(
            6,
            message={
                "role": "assistant",
                "content": [{"type": "text", "text": "It says hello."}],
                "stopReason": "stop",
            },
        ),
    ]


def droid() -> Events:
    def message(
        number: int, role: str, content: list[dict[str, Any]], **more: Any
    ) -> dict[str, Any]:
        inner = {"role": role, "content": content, **more}
        return {"type": "message", "id": f"d{number}", "timestamp": "t", "message": inner}

    return [
        {"type": "session_start", "id": "d-1", "version": 2, "cwd": "/work", "title": "Rename"},
        message(1, "user", [{"type": "text", "text": "Rename the function."}]),
        message(
            2,
            "assistant",
            [
                {"type": "thinking", "thinking": "Find it.", "signature": "s"},
                {"type": "text", "text": "I search."},
                {"type": "tool_use", "id": "g1", "name": "Grep", "input": {"pattern": "old"}},
            ],
        ),
        message(3, "user", [{"type": "tool_result", "tool_use_id": "g1", "content": "a.py:3"}]),
        message(4, "assistant", [{"type": "text", "text": "Renamed."}]),
    ]


def hermes() -> Events:
    def of_session(number: int) -> dict[str, Any]:
        return {
            "id": f"h-{number}",
            "source": "cli",
            "model": "hermes-x",
            "system_prompt": "",
            "started_at": 1_770_000_000.0,
            "messages": [
                {"role": "system", "content": "You are helpful."},
                {"role": "user", "content": f"What is {number} and 2?"},
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning": "Use the calculator.",
                    "tool_calls": [
                        {
                            "id": "q1",
                            "type": "function",
                            "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "q1", "tool_name": "add", "content": "3"},
                {"role": "assistant", "content": "It is 3."},
            ],
        }

    return [of_session(1), of_session(5)]


ALL = {
    "claude_code": claude_code,
    "codex": codex,
    "pi": pi,
    "droid": droid,
    "hermes": hermes,
}


def write(path: Path, events: Events) -> str:
    path.write_text("".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events))
    return str(path)

"""Made-up conversations: small ones that templates treat differently, and large ones that show how a template grows with its data."""

from typing import Any

from penstock.templates.messages import Conversation, Message

_USER = {"role": "user", "content": "What is 2 + 2?"}
_AGAIN = {"role": "user", "content": 'And "3" + 3?\n'}
_PLAIN = {"role": "assistant", "content": ' It\'s "4" – é 🙂. \n'}
_INLINE = {"role": "assistant", "content": "<think>\nadd them\n</think>\n\nFour."}
_FIELDS: Message = {"role": "assistant", "content": "Six.", "reasoning_content": "add\nthem", "thinking": "add\nthem"}
_SYSTEM = {"role": "system", "content": "Be brief."}
_CALL: dict[str, Any] = {
    "function": {"name": "add", "arguments": {"a": '2 "x"', "b": [2, None]}},
    "id": "call00001",
    "type": "function",
}
_CALLS = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": '{"sum": 4}'}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


def probes() -> list[Conversation]:
    """White space at edges, reasoning, quotes, tool calls; many messages, long ones, many calls."""
    conversations = [
        [_USER, _PLAIN],
        [_SYSTEM, _USER, _PLAIN, _AGAIN, _PLAIN],
        [_USER, _INLINE, _AGAIN, _INLINE],
        [_USER, _PLAIN, _AGAIN, _FIELDS],
    ]
    found = [Conversation(messages=messages) for messages in conversations]
    return [*found, Conversation(messages=[_USER, _CALLS, _RESULT, _PLAIN], tools=[_TOOL]), *_large()]


def _large() -> list[Conversation]:
    """A template that doubles a text for each message, letter, tool or call makes more of these than any memory holds."""
    words = 'All work and no play\nmakes Jack <dull>, "dull". ' * 40
    many = [{**_CALL, "id": f"call{number:05}"} for number in range(8)]
    tools = [{**_TOOL, "function": {**_TOOL["function"], "name": f"add{number}"}} for number in range(64)]
    rounds: list[list[Message]] = [
        [_USER, {**_CALLS, "tool_calls": many[: 1 + number % 8]}, _RESULT, _FIELDS] for number in range(16)
    ]
    return [
        Conversation(messages=[_SYSTEM, *[_USER, _PLAIN] * 64]),
        Conversation(messages=[{**_USER, "content": words}, {**_PLAIN, "content": words}]),
        Conversation(messages=[message for some in rounds for message in some], tools=tools),
    ]

"""What can a template do?  Small conversations that templates treat differently, and what they show."""

from typing import Any

from penstock.templates.messages import Conversation, Message

_USER = {"role": "user", "content": "What is 2 + 2?"}
_AGAIN = {"role": "user", "content": 'And "3" + 3?\n'}
_PLAIN = {"role": "assistant", "content": ' It\'s "4" – é 🙂. \n'}
_INLINE = {"role": "assistant", "content": "<think>\nadd them\n</think>\n\nFour."}
_FIELDS = {"role": "assistant", "content": "Six.", "reasoning_content": "add\nthem", "thinking": "add\nthem"}
_SYSTEM = {"role": "system", "content": "Be brief."}
_CALL = {
    "function": {"name": "add", "arguments": {"a": '2 "x"', "b": [2, None]}},
    "id": "call00001",
    "type": "function",
}
_CALLS = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": '{"sum": 4}'}
_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


def probes() -> list[Conversation]:
    """White space at edges, reasoning, quotes, tool calls."""
    conversations = [
        [_USER, _PLAIN],
        [_SYSTEM, _USER, _PLAIN, _AGAIN, _PLAIN],
        [_USER, _INLINE, _AGAIN, _INLINE],
        [_USER, _PLAIN, _AGAIN, _FIELDS],
    ]
    found = [Conversation(messages=messages) for messages in conversations]
    return [*found, Conversation(messages=[_USER, _CALLS, _RESULT, _PLAIN], tools=[_TOOL])]


def with_thoughts() -> list[tuple[list[Message], str, str]]:
    """Conversations of two turns that think, with the first thought and the second."""
    first, second = "penstockfirstthought", "penstocksecondthought"
    styles: list[Any] = [
        lambda thought: {"content": "Four.", "reasoning_content": thought, "thinking": thought},
        lambda thought: {"content": f"<think>\n{thought}\n</think>\n\nFour."},
    ]
    return [
        (
            [_USER, {"role": "assistant", **style(first)}, _AGAIN, {"role": "assistant", **style(second)}],
            first,
            second,
        )
        for style in styles
    ]

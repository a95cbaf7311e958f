"""Draws the picture in docs/concepts/masks.md: python -m tests.docs.mask_picture.  All of it comes from the code that makes masks."""

import re

from tests.docs.pages import ROOT
from tests.templates.conversations import TOOL, assistant, call, chat, result, user

PAGE = ROOT / "docs" / "concepts" / "masks.md"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools{% for t in tools %}{{ '\n' ~ t.function.name }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    user("What is 2 + 2?"),
    assistant("", tool_calls=[call("add", {"a": 2, "b": 2})]),
    result("4"),
    assistant("Four."),
]
_BLOCK = re.compile(r"(<!-- drawn by tests/docs/mask_picture.py -->\n)```text\n.*?```\n", re.DOTALL)
_WIDTH = 72


def picture() -> str:
    """The rendering, a line for each part of a turn: who printed it, what it is, and whether it is trained."""
    record = {"messages": TALK, "tools": [TOOL]}
    template = chat(TEMPLATE)
    made = template.rendering(record)
    lines = [f"{'text':<{_WIDTH}} {'printed by':<14} {'part':<8} trained"]
    for part in template.outline(record):
        said = made.text[part.start : part.stop].replace("\n", "⏎")
        trained = any(start <= part.start and part.stop <= stop for start, stop in made.spans)
        who = f"{part.message} {part.role}" if part.message >= 0 else "no message"
        lines.append(
            f"{said:<{_WIDTH}} {who:<14} {part.name:<8} {'yes' if trained else ''}".rstrip()
        )
    return "\n".join(lines) + "\n"


def page() -> str:
    return _BLOCK.sub(
        lambda found: f"{found[1]}```text\n{picture()}```\n", PAGE.read_text(encoding="utf-8")
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Read the marks of a rendering: which message printed which characters.

Marks nest by level: a mark closes its own level and all deeper ones.  Characters belong to the message of the deepest open level,
or to none.
"""

from dataclasses import dataclass

from penstock.errors import TemplateError
from penstock.templates.chat.instrument import (
    FIRST_LEVEL,
    FIRST_NUMBER,
    GENERATION,
    MARK,
    NOBODY,
    SET_BIT,
)

Run = tuple[int, int, int]  # start, stop, message; -1 where no message printed it


@dataclass(frozen=True, slots=True)
class Attribution:
    """A rendering as text, who printed what of it, and what stood in generation blocks."""

    text: str
    runs: list[Run]  # ascending, none empty, neighbours belong to different messages
    tagged: list[tuple[int, int]]

    def printed_by(self, number: int) -> str | None:
        """All that a message printed; None where it printed nothing in a loop over the messages."""
        own = [self.text[start:stop] for start, stop, owner in self.runs if owner == number]
        return "".join(own) if own else None


def attribute(rendered: str) -> Attribution:
    """Take the marks out of a rendering."""
    first, *parts = rendered.split(MARK)
    texts, runs, tagged = [first], list[Run](), list[tuple[int, int]]()
    stack: list[tuple[int, int, bool]] = []  # levels entered: level, message, whether by a loop
    size, owner, opened = len(first), -1, -1
    if first:
        runs.append((0, size, -1))
    for part in parts:
        level = ord(part[0]) - FIRST_LEVEL
        if level >= 0:
            is_set = level >= SET_BIT
            if is_set:
                level -= SET_BIT
            if not (is_set and (level, True) in [(known, by_loop) for known, _, by_loop in stack]):
                while stack and stack[-1][0] >= level:
                    stack.pop()
                if part[1] != NOBODY:
                    stack.append((level, ord(part[1]) - FIRST_NUMBER, not is_set))
                owner = stack[-1][1] if stack else -1
        elif part[0] == GENERATION:
            opened = size
        else:
            if 0 <= opened < size:
                tagged.append((opened, size))
            opened = -1
        if length := len(part) - 2:
            if runs and runs[-1][2] == owner:
                runs[-1] = (runs[-1][0], size + length, owner)
            else:
                runs.append((size, size + length, owner))
            texts.append(part[2:])
            size += length
    if opened >= 0:
        raise TemplateError("the chat template leaves a generation block in the middle (break or continue inside it)")
    return Attribution("".join(texts), runs, tagged)

"""Read the marks of a rendering: which message printed which characters.

Marks nest by level: a mark closes its own level and all deeper ones.  Characters belong to the message of the deepest open level,
or to none.
"""

from dataclasses import dataclass

from penstock.errors import TemplateError
from penstock.templates.chat.instrument import (
    END_GENERATION,
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


def attribute(rendered: str) -> Attribution:
    """Take the marks out of a rendering."""
    first, *parts = rendered.split(MARK)
    texts, runs, tagged = [first], list[Run](), list[tuple[int, int]]()
    owners: dict[int, int] = {}  # level → message
    by_loop: set[int] = set()  # levels that were entered by a loop variable
    size, owner, opened = len(first), -1, -1
    if first:
        runs.append((0, size, -1))
    for part in parts:
        level, number = part[0], part[1]
        if level == GENERATION:
            opened = size
        elif level == END_GENERATION:
            if 0 <= opened < size:
                tagged.append((opened, size))
            opened = -1
        else:
            owner = _enter(ord(level) - FIRST_LEVEL, number, owners, by_loop)
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


def _enter(level: int, number: str, owners: dict[int, int], by_loop: set[int]) -> int:
    """Take a mark into account; return who prints from here on."""
    is_set, level = level >= SET_BIT, level % SET_BIT
    if not (is_set and level in by_loop):
        for deeper in [known for known in owners if known >= level]:
            del owners[deeper]
            by_loop.discard(deeper)
        if number != NOBODY:
            owners[level] = ord(number) - FIRST_NUMBER
            if not is_set:
                by_loop.add(level)
    return owners[max(owners)] if owners else -1

"""Say in words what was counted about records beside drops: fields that the chat template does not print, turns without an end."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.store.schema import Note
from penstock.types import PARTIAL, UNENDED, UNRENDERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrendered:
    """A field that the chat template does not print."""

    field: str  # such as assistant.reasoning_content
    count: int  # rows
    rows: tuple[int, ...]  # the first few
    characters: int
    share: float | None  # of the assistant's characters; None for a field of another role


def unrendered(notes: Mapping[str, Note], *, assistant_characters: int) -> list[Unrendered]:
    """Those with the largest share of the assistant's text first."""
    found = []
    for name, note in notes.items():
        if name.startswith(UNRENDERED):
            field = name.removeprefix(UNRENDERED)
            own = field.startswith("assistant.") and assistant_characters > 0
            share = note.characters / assistant_characters if own else None
            found.append(
                Unrendered(field=field, count=note.count, rows=note.rows, characters=note.characters, share=share)
            )
    return sorted(found, key=lambda each: (-(each.share or 0.0), -each.count, each.field))


def in_words(found: Unrendered, *, num_rows: int) -> str:
    """ "assistant.reasoning_content in 50 of 50 rows (81,572 characters, 70.3% of the assistant's)"."""
    share = "" if found.share is None else f", {found.share:.1%} of the assistant's"
    size = f" ({found.characters:,} characters{share})" if found.characters else ""
    return f"{found.field} in {found.count:,} of {num_rows:,} rows{size}"


def about_turns(notes: Mapping[str, Note], *, num_rows: int) -> list[tuple[str, Note]]:
    """What is odd about trained turns, in words, with the note that counted it."""
    said = {
        UNENDED: "no token is trained that ends {turns} in {rows}: a model does not learn to stop there",
        PARTIAL: "before {turns} in {rows} stands only a part of the generation prompt, without its thinking tags",
    }
    found = []
    for name, words in said.items():
        if (note := notes.get(name)) is not None:
            turns = f"{note.characters:,} trained turn{'s' * (note.characters != 1)}"
            found.append((words.format(turns=turns, rows=f"{note.count:,} of {num_rows:,} rows"), note))
    return found

"""Count records, tokens, dropped records and notes about the other records, and describe the counts in text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

from penstock.types import (
    PARTIAL,
    PROMPT_CUT,
    TRIMMED,
    UNANSWERED,
    UNENDED,
    UNRENDERED,
    Samples,
)
from penstock.words import plural

FIRST_FEW = 5  # rows kept per reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Records that gave no sample, for one reason: how many, and the first few."""

    count: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Dropped):
    """Something noticed about records that gave samples: in how many, the first few, and how many characters."""

    characters: int  # or turns, where the note is about turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a shard, or a whole store, contains."""

    rows: int
    tokens: int
    trained: int  # tokens with loss
    dropped: dict[str, Dropped] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    assistant_characters: int = 0  # in the records, rendered or not

    @property
    def samples(self) -> int:
        return self.rows - sum(part.count for part in self.dropped.values())

    @classmethod
    def of(cls, samples: Samples) -> "Counts":
        """Count the samples of a shard."""
        dropped: dict[str, list[int]] = {}
        for row, reason in sorted(samples.dropped.items()):
            dropped.setdefault(reason, []).append(row)
        return cls(
            rows=len(samples.offsets) - 1,
            tokens=len(samples.input_ids),
            trained=int(np.count_nonzero(samples.loss_mask)),
            dropped={
                reason: Dropped(count=len(rows), rows=tuple(rows[:FIRST_FEW]))
                for reason, rows in sorted(dropped.items())
            },
            notes={
                name: Note(
                    count=len(rows),
                    rows=tuple(sorted(rows)[:FIRST_FEW]),
                    characters=sum(rows.values()),
                )
                for name, rows in sorted(samples.notes.items())
            },
            assistant_characters=samples.assistant_characters,
        )

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Counts":
        """Counts as `asdict` wrote them."""
        dropped = {
            name: Dropped(**{**part, "rows": tuple(part["rows"])})
            for name, part in value["dropped"].items()
        }
        notes = {
            name: Note(**{**part, "rows": tuple(part["rows"])})
            for name, part in value["notes"].items()
        }
        return cls(**{**value, "dropped": dropped, "notes": notes})


def total(parts: Sequence[Counts]) -> Counts:
    """Add the counts of shards in their order, with records counted from the first shard's first record."""
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("tokens", "trained", "assistant_characters")
    }
    starts = np.cumsum([0, *(part.rows for part in parts)]).tolist()
    dropped = _merge(zip(starts, (part.dropped for part in parts), strict=False))
    notes = _merge(zip(starts, (part.notes for part in parts), strict=False))
    return Counts(rows=starts[-1], dropped=dropped, notes=notes, **sums)


_Kind = TypeVar("_Kind", Dropped, Note)


def _merge(parts: Iterable[tuple[int, dict[str, _Kind]]]) -> dict[str, _Kind]:
    merged: dict[str, _Kind] = {}
    for start, part in parts:
        for name, more in part.items():
            more = replace(more, rows=tuple(start + row for row in more.rows))
            if name in merged:  # every field is a number or a tuple: add them
                both = {
                    each.name: getattr(merged[name], each.name) + getattr(more, each.name)
                    for each in fields(more)
                }
                more = type(more)(**{**both, "rows": both["rows"][:FIRST_FEW]})
            merged[name] = more
    return dict(sorted(merged.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrenderedNote(Note):
    """A field that the chat template does not print."""

    field: str  # such as assistant.reasoning_content
    share: float | None  # of the assistant's characters; None for a field of another role

    def describe(self, num_rows: int) -> str:
        """ "assistant.reasoning_content in 50 of 50 records (81,572 characters, 70.3% of the assistant's)"."""
        share = "" if self.share is None else f", {self.share:.1%} of the assistant's"
        size = f" ({self.characters:,} characters{share})" if self.characters else ""
        return f"{self.field} in {self.count:,} of {num_rows:,} records{size}"


def unrendered(notes: Mapping[str, Note], *, assistant_characters: int) -> list[UnrenderedNote]:
    """Fields that the chat template does not print, the largest share of the assistant's text first."""
    fields = []
    for name, note in notes.items():
        if name.startswith(UNRENDERED):
            field = name.removeprefix(UNRENDERED)
            is_own = field.startswith("assistant.") and assistant_characters > 0
            share = note.characters / assistant_characters if is_own else None
            fields.append(UnrenderedNote(field=field, share=share, **asdict(note)))
    return sorted(fields, key=lambda each: (-(each.share or 0.0), -each.count, each.field))


def about_turns(notes: Mapping[str, Note], *, num_rows: int) -> list[tuple[str, Note]]:
    """What is odd about the turns of conversations, in words, with the note that counted it."""
    texts = {
        UNENDED: "no token is trained that ends {turns} in {rows}: a model does not learn to stop there",
        PARTIAL: "{turns} in {rows} begin with only a part of the generation prompt, without its thinking tags",
        PROMPT_CUT: "in {rows} the prompt alone ends with tokens that it does not have before an answer; they are left out, as trl does",
    }
    notes_in_words = []
    for name, text in texts.items():
        if (note := notes.get(name)) is not None:
            turns = plural(note.characters, "trained turn")
            rows = f"{note.count:,} of {num_rows:,} records"
            notes_in_words.append((text.format(turns=turns, rows=rows), note))
    for name, note in sorted(notes.items()):
        rows = f"{note.count:,} of {num_rows:,} records"
        messages = plural(note.characters, "message")
        if name.startswith(UNANSWERED):
            kind = name.removeprefix(UNANSWERED)
            text = (
                f"{rows} end with a {kind} that nothing answers ({messages} after the last answer, never trained); set "
                f"on_unanswered: drop, trim or trim_tools to leave them out"
            )
            notes_in_words.append((text, note))
        elif name.startswith(TRIMMED):
            kind = name.removeprefix(TRIMMED)
            notes_in_words.append(
                (f"{rows} ended with a {kind} that nothing answers ({messages} removed)", note)
            )
    return notes_in_words

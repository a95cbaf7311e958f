"""What do these records look like as samples?  Rows from all over a source, encoded here and now; nothing is kept.

For questions that come before a store does: which length is sensible, what will it cost, does anything go wrong.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from penstock.errors import BadRecord, TemplateError
from penstock.store.schema import FIRST_FEW, Note
from penstock.types import BadRow, Bools, Ids, Ints, Record, Samples, Source, Template, join_notes

_AT_ONCE = 1024  # rows that are encoded together


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`samples` in the order of `rows`; a row that is bad, refused or dropped is in neither."""

    num_rows: int  # of the source
    looked: int
    rows: Ints  # row numbers of the samples
    samples: tuple[tuple[Ids, Bools], ...]  # ids and loss mask
    dropped: dict[str, list[int]] = field(default_factory=dict)  # reason → rows
    notes: dict[str, Note] = field(default_factory=dict)
    assistant_characters: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)  # row, message
    refused: list[tuple[int, str]] = field(default_factory=list)  # row, message

    @property
    def is_whole(self) -> bool:
        return self.looked == self.num_rows

    @property
    def lengths(self) -> Ints:
        return np.array([len(ids) for ids, _ in self.samples], np.int64)

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids, _ in self.samples)

    @property
    def estimated_tokens(self) -> int:
        """Of the whole source."""
        return round(self.tokens * self.num_rows / self.looked) if self.looked else 0


def spread(num_rows: int, at_most: int) -> list[int]:
    """Row numbers from all over, the first among them; all of them where they are few."""
    if num_rows <= at_most:
        return list(range(num_rows))
    return sorted({place * num_rows // at_most for place in range(at_most)})


def read(source: Source, rows: list[int]) -> tuple[list[int], list[Record], list[tuple[int, str]]]:
    """Rows that can be read, their records, and with its message each row that cannot."""
    good, records, bad = [], [], []
    for row in rows:
        found = _record(source, row)
        if isinstance(found, BadRow):
            bad.append((row, found.message))
        else:
            good.append(row)
            records.append(found)
    return good, records, bad


def look(source: Source, template: Template, *, at_most: int) -> Look:
    """Encode up to `at_most` rows.  What cannot be read or encoded is told apart, not raised."""
    chosen = spread(len(source), at_most)
    rows, records, bad = read(source, chosen)
    refused: list[tuple[int, str]] = []
    dropped: dict[str, list[int]] = {}
    kept: list[int] = []
    samples: list[tuple[Ids, Bools]] = []
    noted: list[tuple[int, dict[str, dict[int, int]]]] = []
    characters = 0
    for start, encoded in _pieces(template, records, rows, refused):
        noted.append((start, encoded.notes))
        characters += encoded.assistant_characters
        offsets = encoded.offsets.tolist()
        for number, reason in encoded.dropped.items():
            dropped.setdefault(reason, []).append(rows[start + number])
        for number, (first, last) in enumerate(pairwise(offsets)):
            if number not in encoded.dropped and last > first:
                kept.append(rows[start + number])
                samples.append((encoded.input_ids[first:last], encoded.loss_mask[first:last]))
    return Look(
        num_rows=len(source),
        looked=len(chosen),
        rows=np.array(kept, np.int64),
        samples=tuple(samples),
        dropped=dropped,
        notes={
            name: Note(
                count=len(sizes),
                rows=tuple(rows[number] for number in sorted(sizes)[:FIRST_FEW]),
                characters=sum(sizes.values()),
            )
            for name, sizes in join_notes(noted).items()
        },
        assistant_characters=characters,
        bad=bad,
        refused=sorted(refused),
    )


def _pieces(
    template: Template, records: list[Record], rows: list[int], refused: list[tuple[int, str]]
) -> Iterator[tuple[int, Samples]]:
    """Where a run of records begins, and its samples.  Around a refused record, those before and behind it are encoded apart."""
    todo = [(start, min(start + _AT_ONCE, len(records))) for start in range(0, len(records), _AT_ONCE)][::-1]
    while todo:
        start, stop = todo.pop()
        try:
            encoded = template.encode(records[start:stop])
        except TemplateError as error:
            if error.record is None:
                raise
            at = start + error.record
            refused.append((rows[at], str(error)))
            todo += [piece for piece in ((at + 1, stop), (start, at)) if piece[0] < piece[1]]
        else:
            yield start, encoded


def doubled(found: Look, token: int | None, *, at_end: bool) -> int:
    """Samples that begin, or end, with this token twice."""
    if token is None:
        return 0
    pairs = Counter(tuple((ids[-2:] if at_end else ids[:2]).tolist()) for ids, _ in found.samples)
    return pairs[(token, token)]


def _record(source: Source, row: int) -> Record | BadRow:
    try:
        return source[row]
    except BadRecord as error:
        return BadRow(reason="bad", message=str(error))

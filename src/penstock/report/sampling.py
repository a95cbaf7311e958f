"""Read and encode records spread over a source, before a store exists; nothing is kept.  And choose a max_length from their lengths."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from penstock.errors import BadRecord, TemplateError
from penstock.reasons import find_reason
from penstock.report.columns import reported_parts
from penstock.store.counts import FIRST_FEW, Note
from penstock.templates.protocols import Renders
from penstock.types import (
    SEQUENCE_LENGTHS,
    Bools,
    Ids,
    Ints,
    Record,
    Samples,
    Source,
    Template,
    join_notes,
    longest_sequences,
)
from penstock.words import ProgressLog, percent, spread

_AT_ONCE = 1024  # rows that are encoded together
_NUMBER = re.compile(r"\d+")
_KEEP = 0.999  # share of the trained tokens that a sensible max_length keeps
# max_length that is chosen by default
_SHORTEST = 1_024
_LONGEST = 32_768

Problem = tuple[int, str]  # row, message


@dataclass(slots=True, kw_only=True)
class EncodedRows:
    """`samples` in the order of `rows`; a record that is bad, refused or dropped is in neither."""

    num_rows: int  # of the source
    looked: int  # rows that were sampled
    rows: list[int] = field(default_factory=list)  # row numbers of the samples
    samples: list[tuple[Ids, Bools]] = field(default_factory=list)  # ids and loss mask
    dropped: dict[str, list[int]] = field(default_factory=dict)  # reason → rows
    notes: dict[str, Note] = field(default_factory=dict)
    assistant_characters: int = 0
    longest_of_samples: list[int] = field(default_factory=list)  # of samples that are sequences
    bad: list[Problem] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)  # the first of them stops the run
    # of each sample: its values of the columns with a report
    reported: list[dict[str, bytes]] = field(default_factory=list)
    skipped: list[Problem] = field(
        default_factory=list
    )  # refused too, but the recipe skips such rows

    @property
    def is_whole(self) -> bool:
        return self.looked == self.num_rows

    @property
    def lengths(self) -> Ints:
        return np.array([len(ids) for ids, _ in self.samples], np.int64)

    @property
    def longest(self) -> Ints:
        """What max_length limits: the length of each sample, or of its longest sequence."""
        if not self.longest_of_samples:
            return self.lengths
        return np.array(self.longest_of_samples, np.int64)

    @property
    def trained(self) -> Ints:
        """Targets of each sample: trained tokens without its first one, which nothing predicts."""
        return np.array([np.count_nonzero(mask[1:]) for _, mask in self.samples], np.int64)

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids, _ in self.samples)

    @property
    def estimated_tokens(self) -> int:
        """Tokens of the whole source."""
        return round(self.tokens * self.num_rows / self.looked) if self.looked else 0

    def doubled(self, token: int | None, *, at_end: bool) -> int:
        """Count samples that begin, or end, with this token twice."""
        pairs = Counter(
            tuple((ids[-2:] if at_end else ids[:2]).tolist()) for ids, _ in self.samples
        )
        return 0 if token is None else pairs[(token, token)]


def read_rows(source: Source, rows: Iterable[int]) -> tuple[list[int], list[Record], list[Problem]]:
    """Return the numbers of the records that can be read, the records, and each record that cannot with its message."""
    good = []
    records = []
    bad = []
    for row in rows:
        try:
            records.append(source[row])
            good.append(row)
        except BadRecord as error:
            bad.append((row, str(error)))
    return good, records, bad


def encode_rows(source: Source, template: Template, *, at_most: int) -> EncodedRows:
    """Encode up to `at_most` records.  Records that cannot be read or encoded are listed, not raised."""
    chosen = spread(len(source), at_most)
    rows, records, bad = read_rows(source, chosen)
    found = EncodedRows(num_rows=len(source), looked=len(chosen), bad=bad)
    noted = []
    progress = ProgressLog(f"checking records of {source.name}", len(records))
    for start, encoded in _encoded_parts(template, records, rows, found.refused):
        progress(start + len(encoded.offsets) - 1)
        noted.append((start, encoded.notes))
        found.assistant_characters += encoded.assistant_characters
        if SEQUENCE_LENGTHS.name in encoded.columns:
            longest = longest_sequences(encoded.columns, encoded.offsets)
            found.longest_of_samples += longest[longest > 0].tolist()
        for number, reason in encoded.dropped.items():
            row = rows[start + number]
            found.dropped.setdefault(reason, []).append(row)
            known = find_reason(reason)
            if known is not None and known.is_refusal:
                found.skipped.append((row, _why_refused(template, records[start + number])))
        for number, (first, last) in enumerate(pairwise(encoded.offsets.tolist())):
            if number not in encoded.dropped and last > first:
                found.rows.append(rows[start + number])
                found.samples.append((encoded.input_ids[first:last], encoded.loss_mask[first:last]))
                found.reported.append(reported_parts(encoded, number))
    progress(len(records))
    for name, sizes in join_notes(noted).items():
        first_few = tuple(rows[number] for number in sorted(sizes)[:FIRST_FEW])
        found.notes[name] = Note(count=len(sizes), rows=first_few, characters=sum(sizes.values()))
    found.refused.sort()
    found.skipped.sort()
    return found


def _encoded_parts(
    template: Template, records: list[Record], rows: list[int], refused: list[Problem]
) -> Iterator[tuple[int, Samples]]:
    """Yield the start and the samples of each run of records.  A refused record goes to `refused`, and splits its run."""
    todo = [
        (start, min(start + _AT_ONCE, len(records))) for start in range(0, len(records), _AT_ONCE)
    ][::-1]
    while todo:
        start, stop = todo.pop()
        try:
            yield start, template.encode(records[start:stop])
        except TemplateError as error:
            if error.record is None:
                raise
            at = start + error.record
            refused.append((rows[at], str(error)))
            todo += [part for part in ((at + 1, stop), (start, at)) if part[0] < part[1]]


def _why_refused(template: Template, record: Record) -> str:
    """Return what the template says about a record that it refuses; `encode` keeps only the reason."""
    try:
        if isinstance(template, Renders):
            template.rendering(record)
    except TemplateError as error:
        return str(error)
    return "the tokenizer refuses the text"


def by_message(problems: list[Problem]) -> list[tuple[str, list[int]]]:
    """Group records by message, the most common first.  Messages that differ only in numbers are one group."""
    found: dict[str, tuple[str, list[int]]] = {}
    for row, message in problems:
        found.setdefault(_NUMBER.sub("", message), (message, []))[1].append(row)
    return sorted(found.values(), key=lambda each: -len(each[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LostShare:
    """What a max_length loses, and the totals."""

    samples: int
    of_samples: int
    tokens: int
    of_tokens: int
    trained: int  # targets
    of_trained: int

    def describe(self, what: str = "dropped") -> str:
        """Say what is lost; `what` happens to samples that are too long."""
        if not self.samples:
            return f"no sample is longer (0 of {self.of_samples:,})"
        many = f"{self.samples:,} of {self.of_samples:,} samples ({percent(self.samples, self.of_samples)})"
        return (
            f"{many} are longer and will be {what}, with {percent(self.tokens, self.of_tokens)} of the tokens and "
            f"{percent(self.trained, self.of_trained)} of the trained tokens"
        )


def sensible_length(lengths: Ints, trained: Ints, model_max_length: int | None = None) -> int:
    """Return the smallest power of two from 1,024 on that keeps 99.9 % of the trained tokens when longer samples are dropped.

    At most 32,768, and at most the model's own maximum.
    """
    most = min(_LONGEST, model_max_length or _LONGEST)
    length = _SHORTEST
    while length < most and int(trained[lengths <= length].sum()) < _KEEP * int(trained.sum()):
        length *= 2
    return min(length, most)


def lost_share(lengths: Ints, trained: Ints, max_length: int) -> LostShare:
    """Return what is lost when samples longer than max_length are dropped.  `trained`: targets of each sample."""
    over = lengths > max_length
    return LostShare(
        samples=int(np.count_nonzero(over)),
        of_samples=lengths.size,
        tokens=int(lengths[over].sum()),
        of_tokens=int(lengths.sum()),
        trained=int(trained[over].sum()),
        of_trained=int(trained.sum()),
    )

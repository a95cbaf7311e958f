"""Count records that several datasets of a recipe share, and those that one has twice, before anything is prepared.

A record is known by a hash of its canonical JSON (keys sorted), 8 bytes; a sample by a hash of its tokens.  Of large data, records from all
over it are compared, and the verdict says how many.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson

from penstock.errors import BadRecord
from penstock.report.sampling import EncodedRows, read_rows
from penstock.sources.parse import record_bytes
from penstock.types import BadRow, Ints, Record, Source
from penstock.words import ProgressLog, percent, plural, spread

_CHUNK = 1024  # neighbouring rows are read together
_MOST_EXAMPLES = 3
_REPEATED = 0.01  # share of the rows that may be repeated, in a set or in two training sets, without a warning
TRAIN = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is shared: in words, with the records concerned and whether it is a problem."""

    question: str
    is_problem: bool
    why: str
    rows: Sequence[int] = ()
    count: int = 0


@dataclass(slots=True)
class _Hashed:
    """The hashes of a dataset's records."""

    name: str
    source: Source
    rows: Ints
    hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]"
    token_rows: Ints
    token_hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]"

    @property
    def is_whole(self) -> bool:
        return self.rows.size == len(self.source)


@dataclass(slots=True)
class Overlaps:
    """Compares each dataset of a recipe with those that came before it; training sets come first.

    at_most: records of each that are read.
    """

    at_most: int
    _earlier: list[_Hashed] = field(default_factory=list)

    def compare(
        self, name: str, part: str, source: Source, encoded: EncodedRows
    ) -> Iterator[Finding]:
        """Yield what this dataset shares with itself and with the training sets."""
        mine = self._hashed(name, source, encoded)
        yield from self._repeats(mine, looked=encoded.looked)
        for other in self._earlier:
            yield from _shared(mine, other, is_evaluated=part != TRAIN)
        if part == TRAIN:
            self._earlier.append(mine)

    def _hashed(self, name: str, source: Source, encoded: EncodedRows) -> _Hashed:
        num_rows = len(source)
        rows = []
        hashes = []
        progress = ProgressLog(f"comparing records of {name}", min(num_rows, self.at_most))
        for start in _chunk_starts(num_rows, self.at_most):
            stop = min(start + _CHUNK, num_rows)
            for row, record in _readable(source, start, stop):
                rows.append(row)
                hashes.append(_record_hash(record))
            progress(len(rows))
        has_more = any(encoded.reported)  # such as pictures: then tokens do not say which ones
        samples = [] if has_more else encoded.samples
        return _Hashed(
            name,
            source,
            np.array(rows, np.int64),
            np.array(hashes, np.uint64),
            np.array([] if has_more else encoded.rows, np.int64),
            np.array([_hash(np.ascontiguousarray(ids).tobytes()) for ids, _ in samples], np.uint64),
        )

    def _repeats(self, mine: _Hashed, *, looked: int) -> Iterator[Finding]:
        """Count records that the set has twice; `duplicates` says it of a set that was checked as a whole."""
        if looked >= len(mine.source) or not mine.rows.size:
            return
        order = np.argsort(mine.hashes, kind="stable")
        again = order[1:][np.diff(mine.hashes[order]) == 0]
        rows = np.sort(mine.rows[again])
        total = mine.rows.size
        why = f"no record comes twice ({_of_all(mine)})"
        if rows.size:
            why = f"{rows.size:,} of {total:,} records ({percent(rows.size, total)}) repeat an earlier one ({_of_all(mine)})"
        yield Finding(
            question="repeated records",
            is_problem=rows.size > _REPEATED * total,
            why=why,
            rows=rows[:5].tolist(),
            count=rows.size,
        )


def _shared(mine: _Hashed, other: _Hashed, *, is_evaluated: bool) -> Iterator[Finding]:
    what = f"training set {other.name!r}"
    at, others = _find(mine.hashes, other.hashes)
    token_at, token_others = _find(mine.token_hashes, other.token_hashes)
    compared = f"{_of_all(mine)} compared with {_of_all(other)}"
    if not at.size and not token_at.size:
        yield Finding(
            question="overlap",
            is_problem=False,
            why=f"shares no record with the {what}; {compared}",
        )
        return
    total = mine.rows.size
    parts = [
        f"{at.size:,} of {plural(total, 'record')} ({percent(at.size, total)}) are also in the {what}"
    ]
    if token_at.size:
        of_tokens = mine.token_rows.size
        parts.append(
            f"{token_at.size:,} of {of_tokens:,} checked ones ({percent(token_at.size, of_tokens)}) have its tokens"
        )
    rows = mine.rows[at] if at.size else mine.token_rows[token_at]
    other_rows = other.rows[others] if at.size else other.token_rows[token_others]
    order = np.argsort(rows, kind="stable")
    examples = ", ".join(
        f"{mine.source.locate(int(rows[place]))} = {other.source.locate(int(other_rows[place]))}"
        for place in order[:_MOST_EXAMPLES].tolist()
    )
    share = max(at.size / max(total, 1), token_at.size / max(mine.token_rows.size, 1))
    advice = "; remove them from one of the two" if is_evaluated else ""
    yield Finding(
        question="overlap",
        is_problem=is_evaluated or share > _REPEATED,
        why=f"{'; '.join(parts)} ({compared}), such as {examples}{advice}",
        rows=np.sort(rows)[:5].tolist(),
        count=int(max(at.size, token_at.size)),
    )


def _find(
    hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
    others: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
) -> tuple[Ints, Ints]:
    """Return the places of hashes that are among the others, and where there."""
    if not hashes.size or not others.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(others, kind="stable")
    places = np.searchsorted(others[order], hashes).clip(max=others.size - 1)
    at = np.flatnonzero(others[order][places] == hashes)
    return at, order[places[at]]


def _of_all(mine: _Hashed) -> str:
    rows = plural(mine.rows.size, "record")
    return (
        f"all {rows}"
        if mine.is_whole
        else f"{mine.rows.size:,} of {plural(len(mine.source), 'record')}"
    )


def _chunk_starts(num_rows: int, at_most: int) -> list[int]:
    """Return where runs of neighbouring records begin: all of them, or evenly spread ones."""
    starts = list(range(0, num_rows, _CHUNK))
    return [starts[place] for place in spread(len(starts), max(1, -(-at_most // _CHUNK)))]


def _readable(source: Source, start: int, stop: int) -> list[tuple[int, Record]]:
    """Return the records of a range that can be read, with their numbers, whatever the policy about bad records is."""
    try:
        records = list(source.records(start, stop))
    except BadRecord:
        good, read, _ = read_rows(source, list(range(start, stop)))
        return list(zip(good, read, strict=True))
    numbered = enumerate(records, start)
    return [(row, record) for row, record in numbered if not isinstance(record, BadRow)]


def _record_hash(record: Record) -> int:
    try:
        content = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # bytes, arrays, dates
        content = record_bytes(record)
    return _hash(content)


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")

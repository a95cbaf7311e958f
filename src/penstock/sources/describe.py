"""What is in there?  Counts, and the columns seen in a few rows spread over the source: a look, not a schema."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import BadRecord

if TYPE_CHECKING:
    from penstock.sources.view import RowAccess

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A key of the records and the types of its values, the most frequent first."""

    name: str
    types: dict[str, int]  # type → rows in which it was seen
    missing: int  # rows that do not have this key
    looked: int

    def __str__(self) -> str:
        kinds = list(self.types)
        if not self.missing:
            return f"{self.name}: {kinds[0]} (always)" if len(kinds) == 1 else f"{self.name}: {' | '.join(kinds)}"
        return f"{self.name}: {' | '.join(kinds)} | missing {_share(self.missing, self.looked)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A source at a glance."""

    name: str
    shape: str
    num_rows: int
    num_files: int
    num_bytes: int | None
    columns: tuple[Column, ...]
    looked: int  # rows looked at
    bad: int  # of these, rows that cannot be read

    def __str__(self) -> str:
        facts = [self.shape or "records", _count(self.num_rows, "row")]
        if self.num_files:
            facts.append(_count(self.num_files, "file"))
        if self.num_bytes is not None:
            facts.append(_size(self.num_bytes))
        head = f"{self.name}: {', '.join(facts)}"
        seen = f"seen in {_count(self.looked, 'row')} spread over the source"
        if self.looked == self.num_rows:
            seen = "seen in all rows"
        if self.bad:
            seen += f", of which {self.bad} cannot be read"
        return "\n".join([head, *(f"  {column}" for column in self.columns), f"  ({seen})"])


def describe(source: "RowAccess", *, look: int) -> Description:
    """Read at most `look` rows.  Bad ones are told apart and not counted against the source's policy."""
    num_rows = len(source)
    rows = sorted({place * num_rows // look for place in range(look)}) if num_rows else []
    types: dict[str, Counter[str]] = {}
    bad = 0
    for row in rows:
        try:
            record = source[row]
        except BadRecord:
            bad += 1
            continue
        for key, value in record.items():
            types.setdefault(str(key), Counter())["None" if value is None else type(value).__name__] += 1
    read = len(rows) - bad
    columns = [
        Column(name=name, types=dict(seen.most_common()), missing=read - seen.total(), looked=read)
        for name, seen in types.items()
    ]
    return Description(
        name=source.name,
        shape=source.shape,
        num_rows=num_rows,
        num_files=len(source.files),
        num_bytes=source.num_bytes,
        columns=tuple(columns),
        looked=len(rows),
        bad=bad,
    )


def _share(part: int, whole: int) -> str:
    percent = 100 * part / whole
    return "under 1 %" if percent < 1 else f"{percent:.0f} %"


def _count(number: int, word: str) -> str:
    return f"{number:_} {word}" if number == 1 else f"{number:_} {word}s"


def _size(num_bytes: int) -> str:
    size, unit = float(num_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{num_bytes} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"

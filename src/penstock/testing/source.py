"""The contract of a source: every way to read it gives the same records."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

from penstock.sources.parse import record_bytes
from penstock.testing.same import raises, same, same_rows, sent
from penstock.types import BadRow, Source
from penstock.words import spread

_FAR = 1 << 40
_SLICES = (
    slice(None),
    slice(1, -1),
    slice(None, None, -1),
    slice(-3, None),
    slice(1, None, 2),
    slice(2, 1),
)


def check_source(
    source: Source, *, expected: Sequence[Any] | None = None, max_pickle: int | None = None
) -> None:
    """Check that every way to read a source gives the same records.

    expected: the records, if they are known; None for a record that cannot be read.
    max_pickle: the largest size of the source in bytes when it is sent to another process.
    """
    whole = list(source.records(0, len(source)))
    same(len(whole), len(source), "records(0, len) gives as many records as len says")
    if expected is not None:
        same_rows(
            (None if isinstance(row, BadRow) else row for row in whole),
            expected,
            "the source, as expected",
        )
    _check_rows(source, whole)
    _check_ranges(source, whole)
    _check_digest(source, whole)
    _check_cuts(source)
    copy, size = sent(source)
    limit = size if max_pickle is None else max_pickle
    assert size <= limit, f"{size} bytes to send it to a process, expected at most {limit}"
    same(
        (len(copy), copy.name),
        (len(whole), source.name),
        "number of records and name of a pickled copy",
    )
    same_rows(copy.records(0, len(copy)), whole, "a pickled copy")
    same(
        copy.digest(0, len(copy)),
        source.digest(0, len(whole)),
        "a pickled copy has the same digest",
    )


def _check_rows(source: Source, whole: list[Any]) -> None:
    num_rows = len(whole)
    for row in _some(num_rows):
        if not isinstance(whole[row], BadRow):
            same(source[row], whole[row], f"[{row}] gives what records() gives")
            same(source[row - num_rows], whole[row], f"[{row - num_rows}] is [{row}]")
        where = source.locate(row)
        same(source.locate(row - num_rows), where, f"where({row - num_rows}) is where({row})")
        assert where.file and where.line >= 1 and where.byte >= 0, (
            f"where({row}) is not a file and line: {where!r}"
        )
    for row in (num_rows, -num_rows - 1, _FAR):
        raises(IndexError, lambda row=row: source[row], f"record {row} of {num_rows}")  # type: ignore[misc]
    good = [record for record in whole if not isinstance(record, BadRow)]
    same_rows(cast(Any, source), good, "the good records by iteration")


def _check_ranges(source: Source, whole: list[Any]) -> None:
    edges = _some(len(whole) + 1, 7)
    for start in edges:
        for stop in (edge for edge in edges if edge >= start):
            same_rows(source.records(start, stop), whole[start:stop], f"records({start}, {stop})")
    for start, stop in ((-1, 0), (1, 0), (0, len(whole) + 1)):
        rows = f"records({start}, {stop}) of {len(whole)} records"
        raises(IndexError, lambda start=start, stop=stop: list(source.records(start, stop)), rows)  # type: ignore[misc]
    for chosen in _SLICES:
        view = cast(Any, source)[chosen]
        same_rows(view.records(0, len(view)), whole[chosen], f"[{chosen}]")
        for row, original in enumerate(range(len(whole))[chosen]):
            same(view.locate(row), source.locate(original), f"where({row}) of [{chosen}]")


def _check_digest(source: Source, whole: list[Any]) -> None:
    num_rows = len(whole)
    digest = source.digest(0, num_rows)
    assert digest and isinstance(digest, str), f"digest is {digest!r}, expected text"
    same(source.digest(0, num_rows), digest, "the digest of the same records is the same")
    assert not num_rows or source.digest(0, num_rows - 1) != digest, (
        "one record less must have another digest"
    )
    contents = {
        row: record_bytes(whole[row])
        for row in _some(num_rows)
        if not isinstance(whole[row], BadRow)
    }
    digests = {source.digest(row, row + 1) for row in contents}
    assert len(digests) >= len(set(contents.values())), (
        "two records that differ must not share a digest"
    )


def _check_cuts(source: Source) -> None:
    for num_bytes, num_rows in ((1, 1), (100, 3), (_FAR, 5), (_FAR, _FAR)):
        cuts = source.cuts(num_bytes=num_bytes, num_rows=num_rows).tolist()
        asked = f"cuts(num_bytes={num_bytes}, num_rows={num_rows}) is {cuts[:9]}…"
        assert cuts[0] == 0 and cuts[-1] == len(source), (
            f"{asked}, expected it to run from 0 to {len(source)}"
        )
        assert all(0 < stop - start <= num_rows for start, stop in pairwise(cuts)), (
            f"{asked}: too wide, or empty"
        )
        same(
            source.cuts(num_bytes=num_bytes, num_rows=num_rows).tolist(),
            cuts,
            f"{asked}: asked again",
        )


def _some(total: int, count: int = 50) -> list[int]:
    """Return numbers below `total`, evenly spread, with the first and the last."""
    return sorted({*spread(total, count), total - 1}) if total else []

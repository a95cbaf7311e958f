"""Does a source keep the rules?  Every way to read it gives the same rows."""

from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler  # what sending a source to a worker process does
from typing import Any, cast

from penstock.sources.canonical import record_bytes
from penstock.types import BadRow, Source

_FAR = 1 << 40


def check_source(source: Source, *, expected: Sequence[Any] | None = None, max_pickle: int | None = None) -> None:
    """Every way to read a source gives the same rows.

    expected: the records, where they are known; None in place of a row that cannot be read.
    max_pickle: bytes that the source may weigh when it is sent to another process.
    """
    whole = list(source.records(0, len(source)))
    _same(len(whole), len(source), "records(0, len) gives as many rows as len says")
    if expected is not None:
        _same(len(whole), len(expected), "as many rows as expected")
        for row, (found, known) in enumerate(zip(whole, expected, strict=True)):
            _same(None if isinstance(found, BadRow) else found, known, f"row {row} is what was expected")
    _check_rows(source, whole)
    _check_ranges(source, whole)
    _check_slices(source, whole)
    _check_digest(source, whole)
    _check_cuts(source)
    _check_pickle(source, whole, max_pickle)


def _check_rows(source: Source, whole: list[Any]) -> None:
    num_rows = len(whole)
    for row in _spread(num_rows):
        if not isinstance(whole[row], BadRow):
            _same(source[row], whole[row], f"[{row}] gives what records() gives")
            _same(source[row - num_rows], whole[row], f"[{row - num_rows}] is [{row}]")
        where = source.where(row)
        _same(source.where(row - num_rows), where, f"where({row - num_rows}) is where({row})")
        assert where.file and where.line >= 1 and where.byte >= 0, f"where({row}) is no place: {where!r}"
    for row in (num_rows, -num_rows - 1, _FAR):
        _raises_index_error(source, row)
    good = [record for record in whole if not isinstance(record, BadRow)]
    iterated = list(cast(Any, source))
    _same(len(iterated), len(good), "iteration gives all good rows and then ends")
    for row, (found, known) in enumerate(zip(iterated, good, strict=True)):
        _same(found, known, f"good row {row} by iteration is the one that records() gives")


def _check_ranges(source: Source, whole: list[Any]) -> None:
    edges = _spread(len(whole) + 1, 7)
    for start in edges:
        for stop in (edge for edge in edges if edge >= start):
            found = list(source.records(start, stop))
            _same(len(found), stop - start, f"records({start}, {stop}) gives {stop - start} rows")
            for row, record in enumerate(found, start):
                _same(record, whole[row], f"row {row} of records({start}, {stop})")
    for start, stop in ((-1, 0), (1, 0), (0, len(whole) + 1)):
        try:
            list(source.records(start, stop))
        except IndexError:
            continue
        raise AssertionError(f"records({start}, {stop}) of {len(whole)} rows must raise IndexError")


def _check_slices(source: Source, whole: list[Any]) -> None:
    for chosen in (slice(None), slice(1, -1), slice(None, None, -1), slice(-3, None), slice(1, None, 2), slice(2, 1)):
        view = cast(Any, source)[chosen]
        _same(len(view), len(whole[chosen]), f"[{chosen}] has as many rows as that of a list")
        for row, (found, known) in enumerate(zip(view.records(0, len(view)), whole[chosen], strict=True)):
            _same(found, known, f"row {row} of [{chosen}]")
        for row, home in enumerate(range(len(whole))[chosen]):
            _same(view.where(row), source.where(home), f"row {row} of [{chosen}] knows its home")


def _check_digest(source: Source, whole: list[Any]) -> None:
    num_rows = len(whole)
    digest = source.digest(0, num_rows)
    assert digest and isinstance(digest, str), f"digest is {digest!r}, expected text"
    _same(source.digest(0, num_rows), digest, "the digest of the same rows is the same")
    if num_rows:
        assert source.digest(0, num_rows - 1) != digest, "a row less must have another digest"
    rows = [row for row in _spread(num_rows) if not isinstance(whole[row], BadRow)]
    named = {source.digest(row, row + 1): record_bytes(whole[row]) for row in rows}
    contents = {record_bytes(whole[row]) for row in rows}
    assert len(named) >= len(contents), "two rows that differ must not share a digest"


def _check_cuts(source: Source) -> None:
    for num_bytes, num_rows in ((1, 1), (100, 3), (_FAR, 5), (_FAR, _FAR)):
        cuts = source.cuts(num_bytes=num_bytes, num_rows=num_rows).tolist()
        asked = f"cuts(num_bytes={num_bytes}, num_rows={num_rows}) is {cuts[:9]}…"
        assert cuts[0] == 0 and cuts[-1] == len(source), f"{asked}, expected it to run from 0 to {len(source)}"
        assert all(0 < stop - start <= num_rows for start, stop in pairwise(cuts)), f"{asked}: too wide, or empty"
        _same(source.cuts(num_bytes=num_bytes, num_rows=num_rows).tolist(), cuts, f"{asked}: asked again")


def _check_pickle(source: Source, whole: list[Any], max_pickle: int | None) -> None:
    frozen = ForkingPickler.dumps(source)
    if max_pickle is not None:
        assert len(frozen) <= max_pickle, f"{len(frozen)} bytes to send it to a process, expected at most {max_pickle}"
    copy = ForkingPickler.loads(frozen)
    _same(len(copy), len(whole), "a pickled copy has as many rows")
    _same(copy.name, source.name, "a pickled copy has the same name")
    for row, record in enumerate(copy.records(0, len(copy))):
        _same(record, whole[row], f"row {row} of a pickled copy")
    _same(copy.digest(0, len(copy)), source.digest(0, len(whole)), "a pickled copy has the same digest")


def _raises_index_error(source: Source, row: int) -> None:
    try:
        source[row]
    except IndexError:
        return
    raise AssertionError(f"[{row}] of {len(source)} rows must raise IndexError")


def _spread(num_rows: int, look: int = 50) -> list[int]:
    """Rows from all over, the first and the last among them."""
    return sorted({place * (num_rows - 1) // max(look - 1, 1) for place in range(look)}) if num_rows else []


def _same(found: Any, known: Any, law: str) -> None:
    """Equal, also in types and in the order of keys: 1 is not 1.0 and not True."""
    if isinstance(found, BadRow) or isinstance(known, BadRow) or not isinstance(known, dict):
        equal = found == known
    else:
        equal = type(found) is type(known) and record_bytes(found) == record_bytes(known)
    assert equal, f"{law}: found {str(found)[:200]}, expected {str(known)[:200]}"

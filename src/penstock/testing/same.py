"""Comparisons that all contracts use.  They raise AssertionError with the law that is broken."""

import json
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.sources.parse import record_bytes
from penstock.types import BadRow


def same(found: Any, known: Any, law: str) -> None:
    """Assert that two values are equal; records also in their types and the order of keys: 1 is not 1.0 and not True."""
    if isinstance(found, BadRow) or not isinstance(known, dict):
        equal = found == known
    else:
        equal = type(found) is type(known) and record_bytes(found) == record_bytes(known)
    assert equal, f"{law}: found {str(found)[:300]}, expected {str(known)[:300]}"


def same_rows(found: Iterable[Any], known: Sequence[Any], what: str) -> None:
    """Assert that two lists of records are equal."""
    rows = list(found)
    same(len(rows), len(known), f"the number of records of {what}")
    for row, (one, other) in enumerate(zip(rows, known, strict=True)):
        same(one, other, f"record {row} of {what}")


def raises(kind: type[Exception], act: Callable[[], Any], what: str) -> None:
    """Assert that an act raises this error."""
    try:
        act()
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind.__name__}")


def sent(value: Any) -> tuple[Any, int]:
    """Send a value as to a worker process; return the copy and the number of bytes."""
    data = ForkingPickler.dumps(value)
    return ForkingPickler.loads(data), len(data)


def plain(value: Any, what: str) -> Any:
    """Assert that a value is plain JSON, and return it as JSON gives it back."""
    try:
        found = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} is not plain JSON: {error}") from error
    assert found == value, f"{what} changes when it is written as JSON: {found}, expected {value}"
    return found

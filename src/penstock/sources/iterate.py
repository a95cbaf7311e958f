"""Iteration with a state: read records in order, stop, and go on at the same record in another process.

Every source can be walked: it yields its records in order, each with the place behind it.  A place is plain JSON.  It holds the record
number, and for a view also the place in the source below.  So a filter need not find all of its records before the first one, and a stream
without an end can be walked through maps, filters and interleaving.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import SourceError
from penstock.fingerprint import digest, fingerprint
from penstock.types import BadRow, Record, Where

if TYPE_CHECKING:
    from penstock.sources.base import RowAccess

_VERSION = 1

# {"row": rows of this view before it, …}; None is the place before the first row
Place = Mapping[str, Any] | None


class Walked(NamedTuple):
    """One record on a walk."""

    record: Record | BadRow
    place: Mapping[str, Any]  # behind the record
    locate: Callable[[], Where]  # only called for messages: of a filter it may take a pass


def row_of(place: Place) -> int:
    """Return the number of records before a place."""
    return 0 if place is None else int(place["row"])


class RecordIterator(Iterator[Record]):
    """The good records of a source in order, with a state.

    `state_dict()` can be taken at any time.  `load_state_dict(state)` of an iterator over the same records, in this process or
    another, goes on behind the last record that was delivered.  It reads that record again and refuses the state if it is another one.
    """

    def __init__(self, source: "RowAccess") -> None:
        self._source = source
        self._outline: str | None = None  # of the views, when a state was first asked for
        self._begin(None)

    def _begin(self, place: Place) -> None:
        self._walk = self._source.walk(place)
        self._before: Place = place  # of the last record
        self._after: Place = place
        self._last: str | None = None  # digest of the last record

    def __next__(self) -> Record:
        for walked in self._walk:
            self._before = self._after
            self._after = walked.place
            self._last = _digest_of(walked.record)
            if not isinstance(walked.record, BadRow):
                return walked.record
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """Return where this iterator is, as plain JSON values of its own."""
        state = {
            "version": _VERSION,
            "views": self._views(),
            "row": row_of(self._after),
            "before": self._before,
            "last": self._last,
        }
        return copy.deepcopy({**state, "check": fingerprint(state)})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the iterator was that returned this state.  A refused state leaves this one where it is."""
        _expect_state(state)
        if state["views"] != self._views():
            raise SourceError(
                f"load_state_dict: the state was taken over other views than {self._source!r}, or over these with other arguments; "
                f"iterate over the same views, or start again without the state"
            )
        begun = RecordIterator(self._source)
        begun._begin(state["before"])
        if state["last"] is not None:
            begun._skip_last(state)
        self.__dict__.update(begun.__dict__)

    def _views(self) -> str:
        """Return a digest of what is walked: the views over the sources, and their arguments."""
        if self._outline is None:
            self._outline = fingerprint(self._source.outline())
        return self._outline

    def __reduce__(self) -> "tuple[Callable[..., RecordIterator], tuple[Any, ...]]":
        """A walk cannot be sent to another process; the source and the state can."""
        return _resumed, (self._source, self.state_dict())

    def _skip_last(self, state: Mapping[str, Any]) -> None:
        """Read the last record that was delivered again, and compare."""
        name = self._source.name
        walked = next(self._walk, None)
        if walked is None:
            raise SourceError(
                f"{name}: the state was taken behind record {state['row'] - 1}, but the source ends before it; "
                f"open the source that the state was taken from"
            )
        found = _digest_of(walked.record)
        if found != state["last"] or row_of(walked.place) != state["row"]:
            raise SourceError(
                f"{walked.locate()}: record {state['row'] - 1} of {name} is not the record that the state was taken behind; "
                f"the data or the views over it have changed, so start again without the state"
            )
        self._after = walked.place
        self._last = found

    def __repr__(self) -> str:
        return f"RecordIterator({self._source!r}, at record {row_of(self._after)})"


def _digest_of(record: Record | BadRow) -> str:
    from penstock.sources.base import content_of  # base imports this module

    return digest(content_of(record))


def _resumed(source: "RowAccess", state: dict[str, Any]) -> RecordIterator:
    iterator = RecordIterator(source)
    iterator.load_state_dict(state)
    return iterator


def _expect_state(state: object) -> None:
    expected = {"version", "views", "row", "before", "last", "check"}
    if not isinstance(state, Mapping) or set(state) != expected:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise SourceError(
            f"load_state_dict: found {found}, expected the dict that state_dict() of source.iterate() returned"
        )
    if state["version"] != _VERSION:
        raise SourceError(
            f"load_state_dict: the state has version {state['version']!r}, this release reads {_VERSION}; start again without it"
        )
    content = {name: value for name, value in state.items() if name != "check"}
    if not _has_check(content, state["check"]):
        raise SourceError(
            "load_state_dict: the state is damaged: its content does not have the digest in its check; use an older one"
        )


def _has_check(content: dict[str, Any], check: object) -> bool:
    try:
        return bool(fingerprint(content) == check)
    except (TypeError, ValueError, RecursionError):
        return False  # not plain JSON

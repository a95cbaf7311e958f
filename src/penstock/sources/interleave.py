"""Several sources as one, a record of each in turns."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any, Protocol

import numpy as np

from penstock.cache.checked import Json
from penstock.errors import SourceError
from penstock.sources.base import RowAccess, expect_seed, random_keys
from penstock.sources.concat import Concat, as_rows, is_source, joined_name
from penstock.sources.iterate import Place, Walked, row_of
from penstock.sources.views import Selection
from penstock.types import Ints, Source
from penstock.words import plural

_STRATEGIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
_AT_ONCE = 4096  # turns that are drawn together


class _Turns:
    """Which source has its turn: turn t depends on the seed and t alone."""

    def __init__(self, num_sources: int, weights: Sequence[float] | None, seed: int) -> None:
        self.weights = weights
        self.seed = seed
        self._num_sources = num_sources

    @property
    def are_drawn(self) -> bool:
        return self.weights is not None

    def is_drawable(self, source: int) -> bool:
        return self.weights is None or self.weights[source] > 0

    def between(self, first: int, last: int) -> Ints:
        """Return the sources of turns first..last."""
        turns = np.arange(first, last, dtype=np.int64)
        if self.weights is None:
            return turns % self._num_sources
        keys = random_keys(turns.astype(np.uint64), ["interleave", self.seed])
        draws = (keys >> np.uint64(11)) / 2.0**53  # in [0, 1)
        edges = np.array(list(accumulate(self.weights))) / sum(self.weights)
        last_drawable = max(filter(self.is_drawable, range(self._num_sources)))
        found = np.searchsorted(edges, draws, side="right")
        return np.minimum(found, last_drawable).astype(
            np.int64
        )  # the last edge may round below one

    def after(self, turn: int) -> Iterator[tuple[int, int]]:
        """Yield (turn, its source) from a turn on, without end."""
        while True:
            for source in self.between(turn, turn + _AT_ONCE).tolist():
                yield turn, source
                turn += 1


class _Cursor(Protocol):
    """How far a source is."""

    restarted: bool  # it has been through, and began again

    def has_more(self) -> bool: ...

    def restart(self) -> None: ...


class _Counted:
    """A source whose number of records is known."""

    def __init__(self, num_rows: int) -> None:
        self.restarted = False
        self._num_rows = num_rows
        self._next = 0

    def has_more(self) -> bool:
        return self._next < self._num_rows

    def restart(self) -> None:
        self.restarted = True
        self._next = 0

    def take(self) -> int:
        """Return the number of the next record."""
        row = self._next
        self._next += 1
        return row


class _Read:
    """A source that is walked."""

    def __init__(self, source: RowAccess, place: Place, *, restarted: bool) -> None:
        self.restarted = restarted
        self.place = place  # behind the last row that was taken
        self._source = source
        self._walk = source.walk(place)
        self._ahead: Walked | None = None

    def has_more(self) -> bool:
        if self._ahead is None:
            self._ahead = next(self._walk, None)
        return self._ahead is not None

    def restart(self) -> None:
        self.restarted = True
        self.place = None
        self._walk = self._source.walk()
        self._ahead = None

    def take(self) -> Walked:
        """Return the next record."""
        walked = self._ahead
        assert walked is not None  # has_more was asked
        self._ahead = None
        self.place = walked.place
        return walked


def _in_turns(
    turns: _Turns, cursors: Sequence[_Cursor], strategy: str, first_turn: int
) -> Iterator[tuple[int, int]]:
    """Yield (turn, number of the source) for each record; the caller takes the record before it asks for the next turn."""
    drawable_cursors = [
        cursor for number, cursor in enumerate(cursors) if turns.is_drawable(number)
    ]
    for turn, number in turns.after(first_turn):
        # Turns in rounds end with a whole round, in which each source has had its turn; drawn turns end anywhere.
        may_end = turns.are_drawn or number == 0
        if may_end and _is_over(strategy, drawable_cursors):
            return
        cursor = cursors[number]
        if not cursor.has_more():
            if strategy != "all_exhausted":
                continue  # nothing is repeated: the source has no turn any more
            _begin_again(cursor, number)
        yield turn, number


def _begin_again(cursor: _Cursor, number: int) -> None:
    """Restart a source from its first record; refuse one that has none, which would be restarted without end."""
    cursor.restart()
    if not cursor.has_more():
        raise SourceError(
            f"interleave: source {number} (counted from 0) has no records, so it cannot be repeated; leave it out"
        )


def _is_over(strategy: str, cursors: Sequence[_Cursor]) -> bool:
    """Return whether the interleaved source ends here, by its stopping strategy."""
    if strategy == "first_exhausted":
        return not all(cursor.has_more() for cursor in cursors)
    return all(cursor.restarted or not cursor.has_more() for cursor in cursors)


class Interleaved(Selection):
    """Records of several sources in turns: records of their concatenation, which are found when one is first needed by its number."""

    def __init__(
        self, sources: Sequence[RowAccess], *, turns: _Turns, strategy: str, name: str
    ) -> None:
        super().__init__(Concat(sources, name=name))
        self._sources = list(sources)
        self._turns = turns
        self._strategy = strategy

    def walk(self, after: Place = None) -> Iterator[Walked]:
        """Walk the sources side by side: none is counted, so one may be without end."""
        row = row_of(after)
        first_turn = 0 if after is None else int(after["turn"])
        saved: Any = (
            [(None, False)] * len(self._sources)
            if after is None
            else list(zip(after["sources"], after["restarted"], strict=True))
        )
        cursors = [
            _Read(source, place, restarted=restarted)
            for source, (place, restarted) in zip(self._sources, saved, strict=True)
        ]
        for turn, number in _in_turns(self._turns, cursors, self._strategy, first_turn):
            walked = cursors[number].take()
            row += 1
            place = {
                "row": row,
                "turn": turn + 1,
                "sources": [cursor.place for cursor in cursors],
                "restarted": [cursor.restarted for cursor in cursors],
            }
            yield walked._replace(place=place)

    def outline(self) -> Json:
        turns = self._turns
        inner = [source.outline() for source in self._sources]
        return ["interleave", turns.weights, turns.seed, self._strategy, *inner]

    def _find(self) -> Ints:
        cursors = [_Counted(len(source)) for source in self._sources]
        first_rows = [0, *accumulate(len(source) for source in self._sources)]
        rows = [
            first_rows[number] + cursors[number].take()
            for _, number in _in_turns(self._turns, cursors, self._strategy, 0)
        ]
        return np.array(rows, dtype=np.int64)

    def __repr__(self) -> str:
        return f"Interleaved({self.name!r}, {plural(len(self._sources), 'source')})"


def interleave(
    sources: Iterable[Source],
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
    stopping_strategy: str = "first_exhausted",
    name: str | None = None,
) -> RowAccess:
    """Sources as one, a record of each in turns; with weights, the source of each record is drawn.

    stopping_strategy: first_exhausted (end with the first source that has no more records), all_exhausted (repeat sources until all have
    been through), or all_exhausted_without_replacement (each record once).  A Loader mixes by weight, too, and shuffles: give it the
    sources one by one.
    """
    chosen = [as_rows(source) for source in _expect_sources(sources)]
    if stopping_strategy not in _STRATEGIES:
        raise SourceError(
            f"interleave: stopping_strategy is {stopping_strategy!r}, expected one of {', '.join(_STRATEGIES)}"
        )
    if weights is not None:
        weights = _expect_weights(weights, len(chosen))
        seed = expect_seed("interleave", seed)
        if min(weights) == 0 and stopping_strategy != "first_exhausted":
            raise SourceError(
                f"interleave: a source of weight 0 is never drawn, so {stopping_strategy} would not end; leave the source out"
            )
    elif seed != 0:
        raise SourceError(
            f"interleave: seed={seed!r} has no effect without weights: each source has its turn; pass weights, or leave seed out"
        )
    return Interleaved(
        chosen,
        turns=_Turns(len(chosen), weights, seed),
        strategy=stopping_strategy,
        name=joined_name(chosen) if name is None else name,
    )


def _expect_sources(sources: Iterable[Source]) -> list[Source]:
    found = list(sources)
    for source in found:
        if not is_source(source):
            raise SourceError(
                f"interleave: found a {type(source).__name__}, expected sources; open it with penstock.open"
            )
    if not found:
        raise SourceError("interleave: no sources given, expected at least one")
    return found


def _expect_weights(weights: Sequence[float], num_sources: int) -> list[float]:
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        numbers = []
    are_right = all(isfinite(weight) and weight >= 0 for weight in numbers) and sum(numbers) > 0
    if len(numbers) != num_sources or not are_right:
        raise SourceError(
            f"interleave: weights are {weights!r}, expected {plural(num_sources, 'number')} ≥ 0, of which one is above 0"
        )
    return numbers

"""The plan of a stream: records that are read in order, while they are trained, and whose number is not known before the end.

A stream is cut into shards by its content alone, so its order does not depend on how much of it has been read: training on its prefix, and
training on a store that was made of all of it, give the same rows.  Shards are not permuted, as those of files are: with shuffle, the
samples of `shuffle_window` neighbouring shards are shuffled together.  Shards and blocks begin small, so that the first batch needs little.

A saved state holds a digest of the shards that it has used, because a fingerprint of all records would need all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from penstock.errors import PlanError, PlanMismatch
from penstock.fingerprint import fingerprint
from penstock.plan.block import BlockMaker
from penstock.plan.mix import Shares
from penstock.plan.permutation import Permutation, derive
from penstock.plan.segments import Segment, Start
from penstock.plan.settings import PlanSettings
from penstock.types import Bools, Ints

_FIRST_BLOCK = 256  # samples; blocks double until they have the size of the settings
_UNKNOWN = 1 << 40  # samples: more than any stream has
NO_LENGTH = (
    "the number of steps of a stream is not known before its end: iterate without it (give a trainer a number of steps), or read the "
    "stream to its end first with len(source)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStream:
    """What the plan knows about a stream.

    shard_end: the row after the last one of a shard, which reads the stream as far as it must; None after the last shard.
    has_row: whether there is a row of this number, which reads the stream up to it.
    has_ended: whether the number of rows is known.
    digest_of: the digest of the first shards together.
    """

    name: str
    key: str  # of the template and the stream's name, not of its content
    shard_end: Callable[[int], int | None]
    has_row: Callable[[int], bool]
    has_ended: Callable[[], bool]
    digest_of: Callable[[int], str]

    @property
    def num_samples(self) -> int:
        """An upper bound: how many there are is not known before the end."""
        return _UNKNOWN

    def identity(self) -> list[str]:
        """Plain values that say which stream this is; a state's journal says what it holds."""
        return [self.name, self.key, "stream"]

    @property
    def digest(self) -> str:
        return fingerprint(self.identity())[:8]


class StreamOrder:
    """The sample ids of a stream, epoch after epoch, in windows of neighbouring shards.

    A place of a later epoch is asked for only after the stream has ended.
    """

    def __init__(self, source: PlannedStream, settings: PlanSettings) -> None:
        self._source = source
        self._seed = settings.seed
        self._shuffle = settings.shuffle
        self._window = int(settings.shuffle_window) if settings.shuffle else 1  # shards
        self._ends: list[int] = []  # of the shards that are known
        self._permutation = lru_cache(maxsize=4)(self._make_permutation)

    @property
    def num_first(self) -> int:
        """Samples of the stream; reads it to its end."""
        return self.reach(_UNKNOWN)

    def has_row(self, row: int) -> bool:
        """Whether the stream has a row of this number; reads it up to there."""
        return self._source.has_row(row)

    def reach(self, place: int) -> int:
        """Return `place`, or the number of samples if the stream ends before; reads no more than the windows up to there."""
        while self._num_rows < place:
            end = self._source.shard_end(len(self._ends))
            if end is None:
                break
            self._ends.append(end)
        return min(place, self._num_rows)

    @property
    def _num_rows(self) -> int:
        """Samples of the shards that are known."""
        return self._ends[-1] if self._ends else 0

    def samples(self, start: int, stop: int) -> Ints:
        """Return the sample ids at places start..stop of one epoch, all of which exist."""
        epoch, start, stop = self._in_epoch(start, stop)
        places = np.arange(start, stop, dtype=np.int64)
        if not self._shuffle:
            return places
        done = start
        while done < stop:
            window, first, end = self._window_at(done)
            inside = places[done - start : end - start]
            permutation = self._permutation(epoch, window, end - first)
            inside[:] = permutation[inside - first] + first
            done = min(end, stop)
        return places

    def passes(self, start: int, stop: int) -> Ints:
        """Return the pass of places start..stop of one epoch."""
        epoch, first, last = self._in_epoch(start, stop)
        return np.full(last - first, epoch, np.int64)

    def _in_epoch(self, start: int, stop: int) -> tuple[int, int, int]:
        """Return the epoch of these places, and the places inside it."""
        if start < self._num_rows:
            return 0, start, stop
        epoch, first = divmod(start, self.num_first)
        return epoch, first, first + stop - start

    def _window_at(self, place: int) -> tuple[int, int, int]:
        """Return the number of the window of a place, and its first row and end."""
        shard = int(np.searchsorted(self._ends, place, side="right"))
        window = shard // self._window
        last = (window + 1) * self._window - 1
        while len(self._ends) <= last:  # the whole window is shuffled together
            end = self._source.shard_end(len(self._ends))
            if end is None:
                break
            self._ends.append(end)
        first_shard = window * self._window
        first = self._ends[first_shard - 1] if first_shard else 0
        return window, first, self._ends[min(last, len(self._ends) - 1)]

    def num_shards(self, place: int) -> int:
        """Return how many shards are needed for the samples before a place of the first epoch."""
        if not place:
            return 0
        self.reach(place)
        last_place = min(place, self._num_rows) - 1
        shard = int(np.searchsorted(self._ends, last_place, side="right"))
        if self._shuffle:
            window, _, _ = self._window_at(last_place)
            shard = min((window + 1) * self._window, len(self._ends)) - 1
        return shard + 1

    def shards(self, start: int, stop: int) -> Ints:
        """Return the shards that are needed for places start..stop of one epoch."""
        _, first, last = self._in_epoch(start, stop)
        return np.arange(max(self.num_shards(first) - 1, 0), self.num_shards(last))

    def pass_borders(self, start: int, stop: int) -> Ints:
        """No block holds samples of two passes: it ends with the stream."""
        return np.empty(0, np.int64)

    def cursor(self, start: int, stop: int, is_left: Bools | None) -> NoReturn:
        """Refuse: a change of mixture needs the number of samples."""
        raise PlanError("the mixture of a run over a stream cannot change: its end is not known")

    def _make_permutation(self, epoch: int, window: int, size: int) -> Permutation:
        path = ("shuffle", self._source.name, epoch, "stream window", window)
        return Permutation(size, derive(self._seed, *path))


class StreamMix:
    """The blocks of one stream.  Every epoch has the same borders; the last block ends with the stream."""

    def __init__(self, order: StreamOrder, settings: PlanSettings) -> None:
        self._order = order
        self._block = settings.block

    def border(self, number: int) -> int:
        """Return the place at which a block begins in each epoch."""
        place = 0
        size = min(_FIRST_BLOCK, self._block)
        while number and size < self._block:
            place += size
            size = min(2 * size, self._block)
            number -= 1
        return place + number * self._block

    def has(self, epoch: int, block: int) -> bool:
        """Reads one row of the block: a batch does not wait for those of the next block."""
        return self._order.has_row(self.border(block))

    def shares(self, epoch: int, block: int) -> Shares | None:
        """Return the places of a block; None past the epoch's end.  Reads no more of the stream than the block needs."""
        first = self.border(block)
        last = self._order.reach(self.border(block + 1))
        if last <= first:
            return None
        start_of_epoch = epoch * self._order.num_first if epoch else 0
        return Shares((start_of_epoch + first,), (start_of_epoch + last,))


class StreamedOrder:
    """What the plan of a run over a stream has besides: the order of its source, and what its states say about the records."""

    def __init__(self, source: PlannedStream, settings: PlanSettings) -> None:
        if settings.last_step not in ("pad", "drop"):
            raise PlanError(
                f"last_step={settings.last_step!r} needs the number of rows of an epoch, which is not known of a stream; choose "
                f"last_step='pad' or 'drop', or shuffle the whole stream: leave out shuffle_window and shuffle=False"
            )
        self._source = source
        self._order = StreamOrder(source, settings)
        self._mix = StreamMix(self._order, settings)

    def segment(self, start: Start, maker: BlockMaker) -> Segment:
        """Return the only segment of the run."""
        return Segment(start, [0], [self._order], self._mix, maker)

    @property
    def has_ended(self) -> bool:
        """Whether the number of rows is known."""
        return self._source.has_ended()

    def require_end(self) -> None:
        """Refuse what needs the number of rows, while it is not known."""
        if not self.has_ended:
            raise PlanError(NO_LENGTH)

    # The journal of a state

    def journal_at(self, epoch: int, blocks_used: int) -> dict[str, Any]:
        """Return what a run has used of the stream after some blocks of an epoch: how many shards, and their digest."""
        if epoch:
            num_shards = self._order.num_shards(self._order.num_first)
        else:
            num_shards = self._order.num_shards(self._mix.border(blocks_used))
        return {"stream": self._used(num_shards)}

    def _used(self, num_shards: int) -> list[Any]:
        return [num_shards, self._source.digest_of(num_shards)]

    def check_journal(self, journal: Any) -> None:
        """Refuse the state of a run over other records.  Reads as much of the stream as that run had used."""
        used = journal.get("stream") if isinstance(journal, dict) else None
        is_readable = isinstance(used, list) and len(used) == 2 and type(used[0]) is int
        if not is_readable or used is None or not 0 <= used[0] < _UNKNOWN:
            raise PlanMismatch("cannot resume: the state was not taken from a run over a stream")
        try:
            used_here = self._used(used[0])
        except IndexError:
            raise PlanMismatch(
                f"cannot resume: the state has used {used[0]:,} shards of the stream, and it has fewer now"
            ) from None
        if used_here != used:
            raise PlanMismatch(
                f"cannot resume: the first {used[0]:,} shards of the stream hold other records than when the state was saved; give the "
                f"stream a name and a version, so that what was read is kept, or make it repeat its records"
            )

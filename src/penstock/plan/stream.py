"""The plan of a stream: records that are read in order, while they are trained, and whose number is not known before the end.

A stream is cut into shards by its content alone, so its order does not depend on how much of it has been read: training on its prefix, and
training on a store that was made of all of it, give the same rows.  Shards are not permuted, as those of files are: with shuffle, the
samples of `shuffle_window` neighbouring shards are shuffled together.  Shards and blocks begin small, so that the first batch needs little.

A saved state holds a digest of the shards that it has used, because a fingerprint of all records would need all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.errors import PlanError, PlanMismatch
from penstock.fingerprint import fingerprint
from penstock.plan.block import Block, Blocks
from penstock.plan.mix import Shares
from penstock.plan.permutation import Permutation, derive
from penstock.plan.plan import Plan, Position
from penstock.plan.settings import PlanSettings
from penstock.types import Ints, Lengths, Targets

_FIRST_BLOCK = 256  # samples; blocks double until they have the size of the settings
_UNKNOWN = 1 << 40  # samples: more than any stream has
_NO_LENGTH = (
    "the number of steps of a stream is not known before its end: iterate without it (give a trainer a number of steps), or read the "
    "stream to its end first with len(source)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """What the plan knows about a stream.

    shard_end: the row after the last one of a shard, which reads the stream as far as it must; None if there is no such shard.
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
    """The sample ids of a stream, epoch after epoch, in windows of neighbouring shards."""

    def __init__(self, source: StreamSource, settings: PlanSettings) -> None:
        self._source = source
        self._seed = settings.seed
        self._shuffle = settings.shuffle
        self._window = int(settings.shuffle_window) if settings.shuffle else 1  # shards
        self._ends: list[int] = []  # of the shards that are known
        self._permutation = lru_cache(maxsize=4)(self._make_permutation)

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
        return self._ends[-1] if self._ends else 0

    def samples(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the sample ids at places start..stop of an epoch, all of which exist."""
        places = np.arange(start, stop, dtype=np.int64)
        if not self._shuffle:
            return places
        done = start
        while done < stop:
            window, first, end = self._window_at(done)
            mine = places[done - start : end - start]
            mine[:] = self._permutation(epoch, window, end - first)[mine - first] + first
            done = min(end, stop)
        return places

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
        """Return how many shards are needed for the samples before a place."""
        if not place:
            return 0
        self.reach(place)
        shard = int(np.searchsorted(self._ends, min(place, self._num_rows) - 1, side="right"))
        if self._shuffle:
            self._window_at(min(place, self._num_rows) - 1)
            shard = min((shard // self._window + 1) * self._window, len(self._ends)) - 1
        return shard + 1

    def shards(self, start: int, stop: int) -> list[int]:
        return list(range(max(self.num_shards(start) - 1, 0), self.num_shards(stop)))

    def _make_permutation(self, epoch: int, window: int, size: int) -> Permutation:
        path = ("shuffle", self._source.name, epoch, "stream window", window)
        return Permutation(size, derive(self._seed, *path))


class StreamBlocks(Blocks):
    """The blocks of a stream.  Every epoch has the same borders; the last block ends with the stream."""

    def __init__(
        self,
        source: StreamSource,
        lengths: Lengths,
        settings: PlanSettings,
        targets: Targets | None,
    ) -> None:
        self._lengths = lengths
        self._settings = settings
        self._targets = targets
        self._name = source.name
        self.order = StreamOrder(source, settings)
        self.shares = self._shares_of

    def border(self, number: int) -> int:
        """Return the place at which a block begins."""
        place = 0
        size = min(_FIRST_BLOCK, self._settings.block)
        while number and size < self._settings.block:
            place += size
            size = min(2 * size, self._settings.block)
            number -= 1
        return place + number * self._settings.block

    def _shares_of(self, epoch: int, block: int) -> Shares | None:
        start = self.border(block)
        stop = self.order.reach(self.border(block + 1))
        return None if stop <= start else Shares((start,), (stop,))

    def samples_taken(self, epoch: int, *, epochs: int = 1) -> tuple[int, ...]:
        return (self.order.reach(_UNKNOWN) * epochs,)

    def shards(self, epoch: int, number: int) -> list[tuple[int, int]] | None:
        if (shares := self._shares_of(epoch, number)) is None:
            return None
        return [(0, shard) for shard in self.order.shards(shares.starts[0], shares.stops[0])]

    def block(self, epoch: int, number: int) -> Block | None:
        if (shares := self._shares_of(epoch, number)) is None:
            return None
        samples = self.order.samples(epoch, shares.starts[0], shares.stops[0])
        return Block(
            sources=np.zeros(samples.size, np.int64),
            samples=samples,
            lengths=self._lengths_of(0, samples),
            settings=self._settings,
            names=(self._name,),
            targets=self._targets,
        )


class StreamPlan(Plan):
    """The whole run over a stream.  What needs the number of its rows is refused until it is known."""

    is_stream = True

    def __init__(
        self,
        source: StreamSource,
        lengths: Lengths,
        settings: PlanSettings,
        *,
        targets: Targets | None = None,
    ) -> None:
        if settings.last_step not in ("pad", "drop"):
            raise PlanError(
                f"last_step={settings.last_step!r} needs the number of rows of an epoch, which is not known of a "
                f"stream; choose last_step='pad' or "
                f"'drop', or shuffle the whole stream: leave out window and shuffle=False"
            )
        self._source = source
        self._stream_blocks = StreamBlocks(source, lengths, settings, targets)
        super().__init__((), lengths, settings, targets=targets, blocks=self._stream_blocks)
        self.sources = (source,)  # type: ignore[assignment]  # has the attributes of a PlanSource that are used

    def changed(self, **settings: Any) -> Plan:
        raise PlanError("a stream has one plan: open it again, and make another Loader")

    def predicted(self) -> Plan:
        return self

    def refuse_unknown_length(self) -> None:
        """Raise TypeError, as `len` of something without a length does, while the number of rows is not known."""
        if not self._source.has_ended():
            raise TypeError(_NO_LENGTH)

    def num_steps(self, num_rows: int, *, epochs: int, start: Position | None = None) -> int:
        if not self._source.has_ended():
            raise PlanError(_NO_LENGTH)
        return super().num_steps(num_rows, epochs=epochs, start=start)

    def seek(
        self, step: int, num_rows: int, *, epochs: int | None = 1, start: Position | None = None
    ) -> Position:
        """Walk there: the rows of the blocks before are counted, and no more of the stream is read."""
        position = start or Position()
        for _ in range(step):
            found = self.step(position, num_rows, epochs=epochs)
            if found is None:
                raise PlanError(f"cannot seek to step {step}: the stream ends before it")
            position = found.after
        return position

    def has_block(self, epoch: int, number: int) -> bool:
        """Reads one row of the block: a batch does not wait for those of the next block."""
        return self._source.has_row(self._stream_blocks.border(number))

    # The journal of a state

    def journal_at(self, position: Position) -> dict[str, Any]:
        """Return what the run has used of the stream at a position: how many shards, and their digest."""
        return {"stream": self._used(self._num_shards(position))}

    def _num_shards(self, position: Position) -> int:
        blocks = self._stream_blocks
        if position.epoch:
            return blocks.order.num_shards(blocks.order.reach(_UNKNOWN))
        if not (position.block or position.row):
            return 0
        return blocks.order.num_shards(blocks.border(position.block + (position.row > 0)))

    def _used(self, num_shards: int) -> list[Any]:
        return [num_shards, self._source.digest_of(num_shards)]

    def check_journal(self, journal: Any) -> None:
        """Refuse the state of a run over other records.  Reads as much of the stream as that run had used."""
        used = journal.get("stream") if isinstance(journal, dict) else None
        is_readable = isinstance(used, list) and len(used) == 2 and type(used[0]) is int
        if not is_readable or used is None or not 0 <= used[0] < _UNKNOWN:
            raise PlanMismatch("cannot resume: the state was not taken from a run over a stream")
        try:
            found = self._used(used[0])
        except IndexError:
            raise PlanMismatch(
                f"cannot resume: the state has used {used[0]:,} shards of the stream, and it has fewer now"
            ) from None
        if found != used:
            raise PlanMismatch(
                f"cannot resume: the first {used[0]:,} shards of the stream hold other records than when the state was saved; give the "
                f"stream a name and a version, so that what was read is kept, or make it repeat its records"
            )

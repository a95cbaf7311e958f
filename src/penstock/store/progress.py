"""How far a store is: what a process that prepares it shows."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.store.work import MadeShard, ShardTask, TaskProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a store is, how fast, and how long it will take."""

    name: str
    rows: int
    num_rows: int
    num_bytes: int  # of the rows so far; 0 where the source does not know
    tokens: int
    shards: int
    num_shards: int
    seconds: float
    rows_per_second: float  # of the rows made by this run
    is_done: bool = False

    @property
    def seconds_left(self) -> float | None:
        """None before the first record is made."""
        return (self.num_rows - self.rows) / self.rows_per_second if self.rows_per_second else None

    def __str__(self) -> str:
        share = self.rows / self.num_rows if self.num_rows else 1.0
        parts = [f"{self.rows:,} of {self.num_rows:,} records ({share:.0%})"]
        if self.num_bytes:
            speed = self.num_bytes / max(self.seconds, 1e-9)
            parts.append(f"{self.num_bytes / 1e6:,.0f} MB ({speed / 1e6:,.1f} MB/s)")
        parts += [f"{self.tokens:,} tokens", f"{self.rows_per_second:,.0f} records/s"]
        if self.is_done:
            parts.append(f"{clock(self.seconds)} in all")
        elif (left := self.seconds_left) is not None:
            parts.append(f"{clock(left)} left")
        return f"{self.name}: {', '.join(parts)}"


def clock(seconds: float) -> str:
    """1:02:03, 2:03, 3 s."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )


Show = Callable[[Progress], object]


class SpeedMeter:
    """Adds up the progress of all tasks and shows it."""

    def __init__(
        self, name: str, tasks: Sequence[ShardTask], show: Show | None, *, sizes: Sequence[int] = ()
    ) -> None:
        self._name = name
        self._show = show
        self._begun = time.monotonic()
        self._rows = {task.shard: task.stop - task.start for task in tasks}
        self._num_rows = sum(self._rows.values())
        self._sizes = sizes or [0] * len(tasks)
        self._notes: dict[int, TaskProgress] = {}  # the last one about each shard
        self._sums: Counter[str] = Counter()  # rows, tokens, num_bytes; found_rows, shards

    def note(self, task: ShardTask, note: TaskProgress) -> None:
        self._add(task.shard, note)
        self.show()

    def add_result(self, result: MadeShard) -> None:
        if result.entry is not None:
            counts = result.entry.counts
            self._add(result.shard, TaskProgress(counts.rows, counts.tokens))
            self._sums.update(shards=1, found_rows=0 if result.is_new else counts.rows)
            self.show()

    def _add(self, shard: int, note: TaskProgress) -> None:
        last = self._notes.get(shard, TaskProgress(0, 0))
        self._notes[shard] = note
        rows = note.rows - last.rows
        size = self._sizes[shard]
        num_bytes = size * note.rows // self._rows[shard] - size * last.rows // self._rows[shard]
        self._sums.update(rows=rows, tokens=note.tokens - last.tokens, num_bytes=num_bytes)

    def show(self, *, is_done: bool = False) -> None:
        if self._show is None:
            return
        seconds = time.monotonic() - self._begun
        sums = self._sums
        progress = Progress(
            name=self._name,
            rows=sums["rows"],
            num_rows=self._num_rows,
            num_bytes=sums["num_bytes"],
            tokens=sums["tokens"],
            shards=sums["shards"],
            num_shards=len(self._rows),
            seconds=seconds,
            rows_per_second=(sums["rows"] - sums["found_rows"]) / seconds if seconds else 0.0,
            is_done=is_done,
        )
        self._show(progress)

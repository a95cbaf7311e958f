"""How far is it, how fast, how long yet?  A value that is handed to whoever wants to show it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.store.make import Made, Note, ShardTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A store under way."""

    name: str
    rows: int
    num_rows: int
    num_bytes: int  # of the rows so far; 0 where the source does not tell
    tokens: int
    shards: int
    num_shards: int
    seconds: float
    rows_per_second: float  # of those that were not found finished
    is_done: bool = False

    @property
    def seconds_left(self) -> float | None:
        """None while nobody can tell."""
        return (self.num_rows - self.rows) / self.rows_per_second if self.rows_per_second else None

    def __str__(self) -> str:
        share = self.rows / self.num_rows if self.num_rows else 1.0
        parts = [f"{self.rows:,} of {self.num_rows:,} rows ({share:.0%})"]
        if self.num_bytes:
            speed = self.num_bytes / max(self.seconds, 1e-9)
            parts.append(f"{self.num_bytes / 1e6:,.0f} MB ({speed / 1e6:,.1f} MB/s)")
        parts.append(f"{self.tokens:,} tokens")
        parts.append(f"{self.rows_per_second:,.0f} rows/s")
        if self.is_done:
            parts.append(f"{_clock(self.seconds)} in all")
        elif (left := self.seconds_left) is not None:
            parts.append(f"{_clock(left)} left")
        return f"{self.name}: {', '.join(parts)}"


Show = Callable[[Progress], object]


class Meter:
    """Counts what tasks tell, and shows it."""

    def __init__(self, name: str, tasks: Sequence[ShardTask], show: Show | None, *, sizes: Sequence[int] = ()) -> None:
        self._name = name
        self._num_rows = sum(task.stop - task.start for task in tasks)
        self._num_shards = len(tasks)
        self._rows = {task.shard: task.stop - task.start for task in tasks}
        self._sizes = sizes
        self._show = show
        self._begun = time.monotonic()
        self._under_way: dict[int, Note] = {}
        self._done_rows = self._done_tokens = self._done_bytes = self._done_shards = self._new_rows = 0

    def told(self, task: ShardTask, note: Note) -> None:
        self._under_way[task.shard] = note
        self._tell()

    def made(self, made: Made) -> None:
        self._under_way.pop(made.shard, None)
        if made.entry is not None:
            self._done_rows += made.entry.counts.rows
            self._done_tokens += made.entry.counts.tokens
            self._done_shards += 1
            self._done_bytes += self._sizes[made.shard] if len(self._sizes) else 0
            self._new_rows += made.entry.counts.rows if made.is_new else 0
            self._tell()

    def finished(self) -> None:
        self._tell(is_done=True)

    def _tell(self, *, is_done: bool = False) -> None:
        if self._show is None:
            return
        seconds = time.monotonic() - self._begun
        under_way = sum(note.rows for note in self._under_way.values())
        part = sum(
            self._sizes[shard] * note.rows // self._rows[shard]
            for shard, note in self._under_way.items()
            if self._sizes
        )
        self._show(
            Progress(
                name=self._name,
                rows=self._done_rows + under_way,
                num_rows=self._num_rows,
                num_bytes=self._done_bytes + part,
                tokens=self._done_tokens + sum(note.tokens for note in self._under_way.values()),
                shards=self._done_shards,
                num_shards=self._num_shards,
                seconds=seconds,
                rows_per_second=(self._new_rows + under_way) / seconds if seconds else 0.0,
                is_done=is_done,
            )
        )


def _clock(seconds: float) -> str:
    """1:02:03, 2:03, 3 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"

"""How do records become one shard?  The work of one process: rows start..stop in, a published file and a few numbers out.

Records are encoded some at a time, so that a process holds the tokens of a shard but never all of its records.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, Any, cast

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceChanged, StoreError, TemplateError
from penstock.fingerprint import Digest
from penstock.store.claims import Claim, Held, take
from penstock.store.manifest import ShardEntry, seal
from penstock.store.schema import shard_key, shard_name
from penstock.store.writer import count, write_shard
from penstock.types import BadRow, Record, Samples, Source, Template, encoder_of, join_notes

_PARTS = 8  # a shard is encoded in at least so many
_MOST_ROWS = 1024  # records at once
_PAUSE = 0.05  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Records start..stop → one shard."""

    shard: int
    start: int
    stop: int
    digest: str | None = None  # of the records, where it is known already; the shard is refused if they say otherwise
    only_digest: bool = False  # nothing is made yet
    replace: bool = False  # whatever lies under that name
    stale: str = ""  # a claim that was watched long enough to be taken over


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What became of a task."""

    shard: int
    digest: str
    key: str = ""
    entry: ShardEntry | None = None  # None where only the digest was asked for, or somebody else makes it
    held: Held | None = None  # by whom
    is_new: bool = False  # made now, not found
    damage: str = ""  # of the file that was found, and is replaced


@dataclass(frozen=True, slots=True)
class Note:
    """How far a task has come."""

    rows: int  # finished; the next ones are being worked on
    tokens: int


Making = Generator[Note, None, Made]
Encode = Callable[[Iterable[Record]], Samples]


class MakeShard:
    """The work: sent to a process once, called with each task."""

    def __init__(self, source: Source, template: Template, cache: Cache) -> None:
        self.source = source
        self.template = template
        self.cache = cache
        self.identity = template.identity()

    def __call__(self, task: ShardTask) -> Making:
        """Make and publish a shard, unless it is there or somebody else makes it."""
        digest = task.digest or self.source.digest(task.start, task.stop)
        if task.only_digest:
            return Made(shard=task.shard, digest=digest)
        key = shard_key(digest, self.identity)
        if task.replace:
            return (yield from self._make(task, digest, key, Claim(self.cache), replace=True))
        entry, damage = self._find(task, key)
        if entry is None:
            claim = take(key, self.cache, stale=task.stale)
            if isinstance(claim, Held):
                return Made(shard=task.shard, digest=digest, key=key, held=claim)
            with claim:
                if not damage:
                    entry, damage = self._find(task, key)  # it may have been finished just before the claim
                if entry is None:
                    made = yield from self._make(task, digest, key, claim, replace=bool(damage))
                    return replace(made, damage=damage)
        return Made(shard=task.shard, digest=digest, key=key, entry=entry)

    def describe(self, task: ShardTask, note: Note | None) -> str:
        """A task in words, for whoever must be told that its process died."""
        first, last = self.source.where(task.start), self.source.where(task.stop - 1)
        text = f"shard {task.shard} (rows {task.start}..{task.stop}, from {first} to {last})"
        if note is not None:
            row = min(task.start + note.rows, task.stop - 1)
            text += f", at or after row {row} ({self.source.where(row)})"
        return text

    def _find(self, task: ShardTask, key: str) -> tuple[ShardEntry | None, str]:
        """The shard where it is there and whole, else what is wrong with it."""
        if self.cache.size(shard_name(key)) is None:
            return None, ""
        num_rows, vocab_size = task.stop - task.start, self.template.vocab_size
        try:
            return seal(key, self.cache, num_rows=num_rows, vocab_size=vocab_size)[0], ""
        except StoreError as error:
            return None, str(error)

    def _make(self, task: ShardTask, digest: str, key: str, claim: Claim, *, replace: bool) -> Making:
        samples = yield from self._encode(task, claim)
        if self.source.digest(task.start, task.stop) != digest:
            raise SourceChanged(
                f"{self.source.where(task.start)}: rows {task.start}..{task.stop} changed while they were tokenized; "
                f"run again, what did not change is kept"
            )
        content = Digest()
        size = self.cache.publish(
            shard_name(key),
            lambda file: write_shard(
                cast(IO[bytes], _Read(file, content)), samples, vocab_size=self.template.vocab_size, key=key
            ),
            replace=replace,
        )
        entry = ShardEntry(key=key, num_bytes=size, counts=count(samples), digest=content.hexdigest())
        return Made(shard=task.shard, digest=digest, key=key, entry=entry, is_new=True)

    def _encode(self, task: ShardTask, claim: Claim) -> Generator[Note, None, Samples]:
        num_rows = task.stop - task.start
        encode = encoder_of(self.template)
        parts: list[Samples] = []
        rows = tokens = 0
        for batch in _batches(self.source.records(task.start, task.stop), max(1, min(_MOST_ROWS, num_rows // _PARTS))):
            yield Note(rows, tokens)
            parts.append(self._encode_batch(encode, batch, task.start + rows))
            claim.beat()
            rows += len(batch)
            tokens += len(parts[-1].input_ids)
        if rows != num_rows:
            raise StoreError(f"{self.source!r} gave {rows} records for rows {task.start}..{task.stop}")
        return _join(parts)

    def _encode_batch(self, encode: Encode, batch: list[Record | BadRow], first: int) -> Samples:
        """Samples of neighbouring rows; a bad row is one without tokens, so that sample i stays row i."""
        good = [number for number, record in enumerate(batch) if not isinstance(record, BadRow)]
        bad = {number: record.reason for number, record in enumerate(batch) if isinstance(record, BadRow)}
        try:
            samples = encode([batch[number] for number in good])  # type: ignore[misc]  # no BadRow
        except TemplateError as error:
            if error.record is None:
                raise
            raise TemplateError(f"{self.source.where(first + good[error.record])}: {error}") from error
        if len(samples.offsets) - 1 != len(good):
            raise StoreError(f"{self.template!r} gave {len(samples.offsets) - 1} samples for {len(good)} records")
        if not bad:
            return samples
        lengths = np.zeros(len(batch), np.int64)
        lengths[good] = np.diff(samples.offsets)
        dropped = {good[number]: reason for number, reason in samples.dropped.items()} | bad
        notes = {name: {good[row]: size for row, size in rows.items()} for name, rows in samples.notes.items()}
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return replace(samples, offsets=offsets, dropped=dict(sorted(dropped.items())), notes=notes)


def run_here(work: MakeShard, tasks: Iterable[ShardTask | None]) -> Iterator[Made]:
    """What an engine does, in this thread."""
    for task in tasks:
        if task is None:
            time.sleep(_PAUSE)
            continue
        making = work(task)
        while True:
            try:
                next(making)
            except StopIteration as end:
                yield end.value
                break


class _Read:
    """A file that is digested while it is written."""

    def __init__(self, file: IO[bytes], content: Digest) -> None:
        self._file, self._content = file, content
        self.closed = False  # pyarrow asks

    def write(self, data: Any) -> int:
        self._content.extend(memoryview(data))
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _batches(records: Iterator[Record | BadRow], size: int) -> Iterator[list[Record | BadRow]]:
    while batch := list(islice(records, size)):
        yield batch


def _join(parts: list[Samples]) -> Samples:
    """One after another.  Encoding is by record, so where a shard was cut for it leaves no trace."""
    if len(parts) == 1:
        return parts[0]
    offsets, dropped = [np.zeros(1, np.int64)], {}
    firsts: list[int] = []
    tokens = rows = 0
    for part in parts:
        firsts.append(rows)
        offsets.append(part.offsets[1:] + tokens)
        dropped.update({rows + number: reason for number, reason in part.dropped.items()})
        tokens += len(part.input_ids)
        rows += len(part.offsets) - 1
    return Samples(
        input_ids=np.concatenate([np.zeros(0, np.uint32), *(part.input_ids for part in parts)]),
        loss_mask=np.concatenate([np.zeros(0, np.bool_), *(part.loss_mask for part in parts)]),
        offsets=np.concatenate(offsets),
        dropped=dropped,
        notes=join_notes(zip(firsts, (part.notes for part in parts), strict=True)),
        assistant_characters=sum(part.assistant_characters for part in parts),
    )

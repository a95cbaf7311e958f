"""Stores of a stream that is still being read: shards are cut, named and made one after the other, as far as they are asked for.

Each shard is the file that `prepare` makes of the same records, so a store that is made ahead holds the same bytes.
"""

import threading
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint
from penstock.store.digests import SHARD_BYTES, SHARD_ROWS
from penstock.store.manifest import Manifest
from penstock.store.records import USUAL_BYTES, RecordStore
from penstock.store.shards import ShardTokens
from penstock.store.store import Store
from penstock.store.work import MakeShard, ShardTask
from penstock.types import AnyTemplate, Engine, Ints


class ShardsOfStream:
    """Where the shards of a stream end, and their digests, as far as they were asked for."""

    def __init__(self, source: Any, *, num_rows: int = SHARD_ROWS) -> None:
        """source: a stream (`is_stream`).  num_rows: of the largest shards."""
        self.source = source
        self._num_rows = num_rows
        self.borders = [0]
        self.digests: list[str] = []
        self._lock = threading.RLock()

    def end(self, shard: int) -> int | None:
        """Return the record after the last one of a shard; None if the stream has no such shard."""
        with self._lock:
            while shard >= len(self.digests):
                end = self.source.shard_end(
                    len(self.digests), num_bytes=SHARD_BYTES, num_rows=self._num_rows
                )
                if end is None:
                    return None
                self.digests.append(self.source.shard_digest(self.borders[-1], end))
                self.borders.append(end)
        return self.borders[shard + 1]

    def digest_of(self, num_shards: int) -> str:
        """Return the digest of the first shards; IndexError if there are fewer."""
        if num_shards and self.end(num_shards - 1) is None:
            raise IndexError(num_shards)
        return fingerprint(self.digests[:num_shards])[:32]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


class StreamStore(Store):
    """Samples of a stream.  A shard is read and made when it is first needed, by the thread that needs it."""

    def __init__(
        self, *, source: Any, template: AnyTemplate, cache: Cache, engine: Engine, num_rows: int
    ) -> None:
        self._work = MakeShard(source, template, cache)
        self._engine = engine
        self.shards_of_stream = ShardsOfStream(source, num_rows=num_rows)
        super().__init__(
            source=source,
            template=template,
            cache=cache,
            keys=[],
            shard_sizes=np.empty(0, np.int64),
        )

    def __len__(self) -> int:
        """Read the stream to its end."""
        return len(self.source)

    @property
    def manifest(self) -> Manifest | None:
        """None until `wait` has made all shards."""
        return self._manifest

    def wait(self) -> "Store":
        """Read the stream to its end and make all shards; then this is a store like any other."""
        from penstock.store.build import build  # which makes this store

        if self._manifest is None:
            whole = build(
                self.source, self.unopened_template, engine=self._engine, cache=self.cache
            )
            self._learn(whole.num_shards)
            self._manifest = whole.manifest
            self.fingerprint = whole.fingerprint
        return self

    def _learn(self, num_shards: int) -> None:
        """Know the sizes and keys of the first shards; fewer if the stream has fewer."""
        if num_shards:
            self.shards_of_stream.end(num_shards - 1)
        shards = self.shards_of_stream
        known = len(self._keys)
        if known < len(shards.digests):
            self._keys += self._work.keys(shards.digests[known:])
            self.shard_starts = np.array(shards.borders[: len(self._keys) + 1], np.int64)
            self.shard_sizes = np.diff(self.shard_starts)
            self._starts = self.shard_starts.tolist()
            self.num_shards = len(self._keys)

    def tokens(self, shard: int) -> ShardTokens:
        from penstock.store.build import make_here  # build makes this store

        self._learn(shard + 1)
        if self._manifest is None and shard not in self._shards:
            start, stop = self._starts[shard : shard + 2]
            digest = self.shards_of_stream.digests[shard]
            make_here(self._work, ShardTask(shard=shard, start=start, stop=stop, digest=digest))
        return super().tokens(shard)

    def _check(self, sample_ids: Ints) -> None:
        if not len(sample_ids):
            return
        largest = int(sample_ids.max())
        while self._starts[-1] <= largest:
            before = self.num_shards
            self._learn(before + 1)
            if self.num_shards == before:
                raise IndexError(f"sample {largest} of {self!r}")

    def describe(self) -> str:
        rows = f"{self._starts[-1]:,} records in {self.num_shards:,} shards so far"
        return f"a stream: {rows}; shards are made while they are used"

    def __repr__(self) -> str:
        return f"StreamStore({self.name!r}, {self._starts[-1]:_} records so far)"

    def __getitem__(self, row: Any, /) -> Any:
        if isinstance(row, int | np.integer):
            if row < 0:
                raise StoreError(
                    "samples of a stream are counted from its start; call store.wait() first"
                )
            self._check(np.array([row], np.int64))
        return super().__getitem__(row)


class RecordStream(RecordStore):
    """The records of a stream as a store.  What needs all of them reads them all, when it is first asked for."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.cache = source.cache
        self.shards_of_stream = ShardsOfStream(source)
        self._whole: RecordStore | None = None

    def _all(self) -> RecordStore:
        if self._whole is None:
            self._whole = RecordStore(self.source)
        return self._whole

    @property
    def shard_sizes(self) -> Ints:  # type: ignore[override]
        return self._all().shard_sizes

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return self._all().fingerprint

    @property
    def _unreadable(self) -> Any:
        return self._all()._unreadable

    @property
    def bytes_per_record(self) -> int:
        return USUAL_BYTES

    def lengths_of(self, sample_ids: Ints) -> Ints:
        return np.ones(sample_ids.size, np.int64)  # a spool has no rows that cannot be read

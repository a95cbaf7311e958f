"""Finished stores that were made elsewhere: the files of a store in a folder, at a URL or on the hub, under the names of a cache.

A store of this kind has its tokens and masks, and nothing of the records that it was made of.  Its files are copied and checked, every
byte, into a folder of the cache that is named by the content of the manifest.  `prepare` never looks there: the name of a shard says which
records it was made of, and only who made it knows whether that is true.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.errors import SourceError, StoreError
from penstock.fingerprint import fingerprint
from penstock.places.files import absolute, identify, is_file, open_file, read, read_file
from penstock.store.inventory import LOADED
from penstock.store.manifest import Manifest, lengths_name, load, manifest_name, parse
from penstock.store.shards import FORMAT_VERSION, ShardEntry, shard_name
from penstock.store.store import Store
from penstock.store.verify import verify
from penstock.types import BadRow, Column, Ints, Record, Samples, Where
from penstock.words import plural

INDEX = "penstock.json"  # the file that says which store a folder holds
_AT_ONCE = 8  # files that are copied together
_PUSH_AGAIN = "push the store again with store.push_to_hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIndex:
    """Which store a folder holds."""

    format: int  # of shards and manifest
    store: str  # its fingerprint
    name: str
    penstock: str  # the version that wrote the folder
    # of the records of each shard, if they came from a stream: its order in windows follows from them
    stream_digests: tuple[str, ...] | None = None

    @classmethod
    def of(cls, store: Store, version: str) -> "StoreIndex":
        """The index of a finished store."""
        digests = None
        source: Any = store.source
        if getattr(source, "is_stream", False):
            pairs = pairwise(store.shard_starts.tolist())
            digests = tuple(source.shard_digest(start, stop) for start, stop in pairs)
        return cls(
            format=FORMAT_VERSION,
            store=store.fingerprint,
            name=store.name,
            penstock=version,
            stream_digests=digests,
        )

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()


def read_index(folder: str) -> StoreIndex:
    """Read the index of a folder; raise StoreError if it holds no store that this version can read."""
    place = f"{folder}/{INDEX}"
    if not is_file(place):
        raise StoreError(
            f"{folder}: has no file {INDEX}, so it is not a store that store.push_to_hub wrote; its records are read by penstock.open"
        )
    try:
        value = json.loads(read(place))
        digests = value.get("stream_digests")
        index = StoreIndex(
            format=int(value["format"]),
            store=str(value["store"]),
            name=str(value["name"]),
            penstock=str(value["penstock"]),
            stream_digests=None if digests is None else tuple(map(str, digests)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{place}: damaged ({error!r}); {_PUSH_AGAIN}") from error
    if index.format != FORMAT_VERSION:
        raise StoreError(
            f"{folder}: a store of format {index.format}, written by Penstock {index.penstock}, and this version reads format "
            f"{FORMAT_VERSION}; use that version, or prepare the records again and push the new store"
        )
    return index


def load_from(
    folder: str, cache: Cache, *, name: str | None = None, tokenizer: Any = None
) -> Store:
    """Copy a finished store into the cache, check every byte of it, and open it.

    tokenizer: the one that the store was made with, for `sample.text`; it has `decode` and `identity`.
    """
    index = read_index(folder.rstrip("/"))
    folder = absolute(folder.rstrip("/"))  # of the hub, with the commit that was just looked up
    data = _read(f"{folder}/{manifest_name(index.store)}", folder)
    manifest = parse(
        data, index.store, where=f"{folder}/{manifest_name(index.store)}", advice=_PUSH_AGAIN
    )
    template = LoadedTemplate(manifest, tokenizer, index.name)
    own = _own_cache(cache, index.store, data)
    if load(index.store, own) is None or not manifest.is_whole(own):
        _copy(folder, manifest, own)
        own.publish(manifest_name(index.store), lambda file: file.write(data), replace=True)
        _check(folder, index.store, own)
    sizes = [entry.counts.rows for entry in manifest.shards]
    source = AbsentRecords(name or index.name, manifest.counts.rows, folder)
    if index.stream_digests is not None:
        if len(index.stream_digests) != len(sizes):
            raise StoreError(
                f"{folder}/{INDEX}: digests of {len(index.stream_digests)} shards, expected {len(sizes)}; {_PUSH_AGAIN}"
            )
        source = AbsentStream(source, sizes, index.stream_digests)
    return Store(
        source=source,
        template=template,
        cache=own,
        keys=[entry.key for entry in manifest.shards],
        shard_sizes=np.array(sizes, dtype=np.int64),
        manifest=manifest,
    )


def _own_cache(cache: Cache, store: str, manifest: bytes) -> Cache:
    """Return the cache of one loaded store.  Two manifests of one store, which may promise other bytes, have two caches."""
    here = cache.here
    content = fingerprint([LOADED, manifest.decode()])
    root = here.root / LOADED / f"{store}-{content}"
    return Cache(root, allow_shared=here.place.allow_shared, verify=cache.verify)


def _copy(folder: str, manifest: Manifest, own: Cache) -> None:
    """Copy shards and lengths that are not there yet.  A shard is compared with its digest before it gets its name."""
    missing = {
        entry.key: entry
        for entry in manifest.shards
        if own.size(shard_name(entry.key)) != entry.num_bytes
    }

    def copy(entry: ShardEntry) -> None:
        _copy_shard(folder, entry, own)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(copy, missing.values()):
            pass
    lengths = _read(f"{folder}/{lengths_name(manifest.name)}", folder)
    own.publish(lengths_name(manifest.name), lambda file: file.write(lengths), replace=True)


def _copy_shard(folder: str, entry: ShardEntry, own: Cache) -> None:
    place = f"{folder}/{shard_name(entry.key)}"
    identity = _identified(place, folder)
    if identity.size != entry.num_bytes:
        raise StoreError(
            f"{place}: {identity.size:,} bytes, expected {entry.num_bytes:,} by the manifest; {_PUSH_AGAIN}"
        )
    try:
        file = open_file(identity)
        data = memoryview(file.map() if file.on_disk else file.read(0, identity.size))
    except SourceError as error:
        raise StoreError(f"{folder}: cannot be copied: {error}") from error
    if not entry.matches(data):
        raise StoreError(
            f"{place}: its bytes do not have the digest {entry.digest} of the manifest; the file or its copy on this machine was "
            f"changed: remove the copy, or {_PUSH_AGAIN}"
        )

    def write(out: IO[bytes]) -> None:
        out.write(data)

    own.publish(shard_name(entry.key), write, replace=True)


def _check(folder: str, store: str, own: Cache) -> None:
    """Read all that was copied once more; take the manifest away if a file is not what it promises."""
    report = verify(store, own)
    if not report.is_whole:
        own.remove(manifest_name(store))
        own.remove(lengths_name(store))
        raise StoreError(
            f"{folder}: {len(report.problems)} of {plural(report.num_files, 'file')} are damaged: {report.problems[0]}; {_PUSH_AGAIN}"
        )


def _identified(place: str, folder: str) -> Any:
    try:
        return identify(place)
    except SourceError as error:
        raise StoreError(f"{folder}: not a whole store: {error}; {_PUSH_AGAIN}") from error


def _read(place: str, folder: str) -> bytes:
    """Return a file that the index or the manifest promises."""
    identity = _identified(place, folder)
    try:
        return read_file(identity)
    except SourceError as error:
        raise StoreError(f"{folder}: cannot be copied: {error}") from error


class LoadedTemplate:
    """What made the samples of a loaded store: its identity, and its tokenizer if the user gave it."""

    def __init__(self, manifest: Manifest, tokenizer: Any, name: str) -> None:
        schema = manifest.schema
        self.vocab_size = schema.vocab_size
        self.columns: tuple[Column, ...] = schema.columns
        self.tokenizer = tokenizer
        self._identity = {
            key: value for key, value in manifest.template.items() if key != "sample_columns"
        }
        expected = tokenizer_digest(manifest.template)
        if tokenizer is None or expected is None:
            return
        found = tokenizer.identity()["digest"]
        if found != expected:
            raise StoreError(
                f"{name!r} was made with a tokenizer of digest {expected[:8]}, and {tokenizer!r} has {found[:8]}; "
                f"give the same tokenizer, or none"
            )

    def identity(self) -> dict[str, Any]:
        return self._identity

    def encode(self, records: Any) -> Samples:
        raise StoreError(
            "a loaded store makes no samples: it has the tokens of a store that was made elsewhere"
        )

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        if self.tokenizer is None:
            raise StoreError(
                "this store was loaded without its tokenizer, so its tokens have no text; pass tokenizer= to load_from_hub"
            )
        return str(self.tokenizer.decode(input_ids))

    def __repr__(self) -> str:
        return f"LoadedTemplate({self._identity.get('template')!r}, {self.tokenizer!r})"


def tokenizer_digest(identity: Any) -> str | None:
    """Return the digest of the tokenizer in the identity of a template; None if it has no tokenizer."""
    if not isinstance(identity, dict) or not isinstance(identity.get("tokenizer"), dict):
        return None
    found = identity["tokenizer"].get("digest")
    return found if isinstance(found, str) else None


class AbsentRecords:
    """The records of a loaded store, which it does not have: only how many they were, and where its samples are from."""

    is_stream = False

    def __init__(self, name: str, num_rows: int, folder: str) -> None:
        self.name = name
        self._num_rows = num_rows
        self._folder = folder

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, row: int, /) -> Record:
        raise self._absent()

    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        raise self._absent()

    def digest(self, start: int, stop: int) -> str:
        raise self._absent()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        raise self._absent()

    def locate(self, row: int) -> Where:
        return Where(file=self._folder, line=row + 1)

    def _absent(self) -> SourceError:
        return SourceError(
            f"{self._folder}: a loaded store has tokens and masks, not the records that they were made of; store[i] has the sample"
        )

    def __repr__(self) -> str:
        return f"AbsentRecords({self.name!r}, {plural(len(self), 'record')})"


class AbsentStream(AbsentRecords):
    """The records of a loaded store that came from a stream, which was read to its end."""

    is_stream = True
    has_ended = True

    def __init__(
        self, records: AbsentRecords, shard_sizes: Sequence[int], digests: Sequence[str]
    ) -> None:
        super().__init__(records.name, len(records), records._folder)
        self._borders = [0, *accumulate(shard_sizes)]
        self._digests = dict(zip(pairwise(self._borders), digests, strict=True))

    def has_row(self, row: int) -> bool:
        return 0 <= row < len(self)

    def shard_end(self, shard: int, *, num_bytes: int, num_rows: int) -> int | None:
        """Return the record after the last one of a shard; None after the last shard."""
        return self._borders[shard + 1] if shard + 1 < len(self._borders) else None

    def shard_digest(self, start: int, stop: int) -> str:
        return self._digests[start, stop]

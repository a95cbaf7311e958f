"""A cache in a bucket (`s3://`, `gs://`, `az://`), with a local folder as its mirror.

The bucket holds what other machines can use, under the names of a local cache: shards, manifests, digests, line indexes, facts, claims.
A file is uploaded before the mirror has it, so a process that is killed in between leaves nothing that only this machine knows.  Files
that are read by memory map are fetched whole into the mirror, with their length and digest checked.  Copies of data stay local.

The mirror's shards have a byte budget; what is needed last is removed first, and never a shard that this process has open.  A shard that
another process has open stays readable there after its name is removed.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TypeVar

from penstock.cache.cache import (
    OTHER_CONTENT,
    Cache,
    Entry,
    Fetch,
    ShardReader,
    default_root,
    explained,
    parse_size,
)
from penstock.cache.claims import wait_for_claim
from penstock.cache.owner import Owner, remove_dead
from penstock.errors import StoreError
from penstock.extras.remote.bucket import Bucket
from penstock.extras.remote.requests import Changed, Missing, RemoteError
from penstock.fingerprint import fingerprint
from penstock.places.files import with_home
from penstock.places.place import FileId
from penstock.words import size as in_words

_Data = TypeVar("_Data")
NextUse = Callable[[str], float]

SHARDS = "shards"
_READ_THERE = (
    "claims",
    "seen",
    "digests",
    "offsets/notes",
)  # small files, read from the bucket each time
_MIRRORED = (SHARDS, "stores", "facts", "offsets", "memo")
_NEVER_REPLACED = ("facts/", "memo/")  # a copy needs no look into the bucket
_PROBE = "probe/conditional-create"  # in the mirror: whether the bucket refuses to create an object twice
_SHARE_OF_DISK = 10  # the default budget is 1 / 10 of the free disk
_TRIES = 3
_AT_ONCE = 8  # fetches that a reader waits for
_IN_MEMORY = 1 << 25  # bytes of a file that is being made; a larger one goes to a temporary file

ROOM = threading.RLock()  # held while this process decides what to remove from a mirror

_log = logging.getLogger("penstock")


class Shared:
    """What all caches of one mirror in this process share: a mixture has a cache for each store, and two Loaders may read at once."""

    def __init__(self) -> None:
        self.caches: weakref.WeakSet[RemoteCache] = weakref.WeakSet()
        self.readers: weakref.WeakSet[ShardReader] = weakref.WeakSet()
        # what this process has open of the mirror, by name and holder
        self.open: weakref.WeakValueDictionary[tuple[str, int], object] = (
            weakref.WeakValueDictionary()
        )
        self.coming: dict[str, int] = {}  # bytes of shards that are being fetched
        self.plans: list[NextUse] = []  # of Loaders that read: in how many blocks a shard is needed
        self.most_over = 0  # bytes by which the mirror was larger than its budget
        # by name of a file that threads of this process fetch: a lock, and how many of them hold it or wait for it
        self._fetches: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Let one thread of this process fetch a file.  Others go on as soon as it is done; a claim is only looked at now and then."""
        with ROOM:
            lock, num_threads = self._fetches.get(name, (threading.Lock(), 0))
            self._fetches[name] = (lock, num_threads + 1)
        try:
            with lock:
                yield
        finally:
            with ROOM:
                lock, num_threads = self._fetches.pop(name)
                if num_threads > 1:
                    self._fetches[name] = (lock, num_threads - 1)


_SHARED: dict[Path, Shared] = {}


class RemoteCache(Cache):
    """A cache in a bucket.  `root` is the local mirror, `where` the URL."""

    is_remote = True
    room = ROOM

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        mirror_bytes: int | None = None,
        max_bytes: int | None = None,
        allow_shared: bool | None = None,
        verify: bool | str | None = None,
    ) -> None:
        url = os.fspath(root or os.environ["PENSTOCK_CACHE"]).rstrip("/")
        super().__init__(
            _mirror_root(url), max_bytes=max_bytes, allow_shared=allow_shared, verify=verify
        )
        self.where = url
        self.bucket = Bucket(url)
        if self.max_bytes is not None:
            raise StoreError(
                f"{self.where}: PENSTOCK_CACHE_MAX is for a local cache, and objects of a bucket are not pruned; unset it, and limit the "
                f"local mirror with PENSTOCK_MIRROR_BYTES or mirror_bytes="
            )
        most = os.environ.get("PENSTOCK_MIRROR_BYTES", "").strip()
        self.mirror_bytes = parse_size(most) if mirror_bytes is None and most else mirror_bytes
        # fetches that a reader waited for
        self.stalls = 0
        self.stall_seconds = 0.0
        self._is_direct = False  # read from the bucket, whatever the mirror has
        self.shared = _SHARED.setdefault(self.root, Shared())
        self.shared.caches.add(self)

    @cached_property
    def here(self) -> Cache:
        """The mirror as a plain cache, for what is only this machine's business."""
        return Cache(self.root, allow_shared=self.place.allow_shared)

    @property
    def claims(self) -> Bucket | None:
        """Where claims are made: the bucket, unless it creates an object twice, so that claims mean nothing there."""
        return self.bucket if self._creates_once else None

    @cached_property
    def _creates_once(self) -> bool:
        with contextlib.suppress(StoreError):
            if self.here.size(_PROBE) is not None:
                self.bucket.place.creates_new = self.here.read(_PROBE) == b"yes"
                return self.bucket.place.creates_new
        name = self.bucket.full(f"claims/.probe-{os.urandom(8).hex()}")
        with explained("write", self.where):
            answer = self.bucket.place.creates_once(name)
        if not answer:
            _log.warning(
                "%s: this store overwrites objects that it was asked to create only if they are new; machines that prepare together may "
                "make a shard twice, with the same bytes",
                self.where,
            )
        with contextlib.suppress(StoreError):
            self.here.publish(
                _PROBE,
                lambda file: file.write(b"yes" if answer else b"no"),
                replace=True,
            )
        return answer

    # What is in the bucket

    def size(self, name: str) -> int | None:
        kind = _kind(name)
        if kind == "local":
            return super().size(name)
        if name.startswith(_NEVER_REPLACED):
            copied = super().size(name)
            if copied is not None:
                return copied
        with explained("look up", self.bucket.full(name)), contextlib.suppress(Missing):
            size = self.bucket.stat(name).size
            if kind == "mirrored" and super().size(name) not in (None, size):
                self.place.remove(name)  # replaced in the bucket since
            return size
        return None

    def sizes(self, names: Collection[str]) -> dict[str, int | None]:
        """Bytes of several files.  One listing for many, of all folders at once; what it lacks is asked for by name, as it may be old."""
        if len(names) < 8:
            return super().sizes(names)
        folders = {name.partition("/")[0] for name in names}
        with ThreadPoolExecutor(len(folders)) as pool:
            listed = [entry for entries in pool.map(self.entries, folders) for entry in entries]
        known = {entry.name: entry.num_bytes for entry in listed}
        return {name: known[name] if name in known else self.size(name) for name in names}

    def names(self, folder: str) -> list[str]:
        if _kind(f"{folder}/") == "local":
            return super().names(folder)
        with explained("list", self.bucket.full(folder)):
            return sorted(
                f"{folder}/{name}" for name, _ in self.bucket.entries(folder) if name[0] != "."
            )

    def entries(self, below: str = "") -> list[Entry]:
        own = [entry for entry in super().entries(below) if _kind(entry.name) == "local"]
        with explained("list", self.bucket.full(below)):
            files = [(file.path[len(self.where) + 1 :], file) for file in self.bucket.scan(below)]
        return sorted(
            [
                *own,
                *(
                    Entry(name, file.size, file.mtime)
                    for name, file in files
                    if "/." not in f"/{name}"
                ),
            ]
        )

    def read(self, name: str) -> bytes:
        if _kind(name) == "there" or (self._is_direct and _kind(name) == "mirrored"):
            with explained("read", self.bucket.full(name)):
                return self.bucket.read(name)
        return super().read(name)

    def read_start(self, name: str, num_bytes: int) -> bytes:
        """Of a shard that another machine has made, only the beginning is fetched."""
        if _kind(name) != "mirrored" or super().size(name) is not None:
            return super().read_start(name, num_bytes)
        url = self.bucket.full(name)
        with explained("read", url):
            version = self.bucket.stat(name)
            return self.bucket.place.open(url, version).read(0, min(num_bytes, version.size))

    def reading(self, name: str, read: Callable[[str], _Data], *, size: int | None = None) -> _Data:
        is_again = False
        for _ in range(_TRIES if _kind(name) == "mirrored" else 0):
            self.fetch_all([Fetch(name, size)])
            try:
                return read(name)
            except FileNotFoundError:  # removed since, by another process that needs the room
                pass
            except StoreError as error:
                if is_again:
                    raise
                _log.warning("%s; this copy is removed, and the object is fetched again", error)
                self.place.remove(name)
                is_again = True
        return super().reading(name, read, size=size)

    def publish(
        self,
        name: str,
        write: Callable[[IO[bytes]], object],
        *,
        replace: bool = False,
        durable: bool = True,
    ) -> int:
        """Upload a file, and then give the mirror a copy; return its bytes.  A file that has the name already stays, unless `replace`.

        The bucket comes first: a process that is killed in between leaves nothing that only this machine knows.
        """
        kind = _kind(name)
        if kind == "local":
            return super().publish(name, write, replace=replace, durable=durable)
        url = self.bucket.full(name)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as content, explained("write", url):
            write(content)
            size = content.seek(0, os.SEEK_END)
            copy = partial(_copy_all, content)  # an upload that is tried again copies again
            try:
                self.bucket.create(name, copy, replace=replace)
            except FileExistsError as error:
                raise StoreError(f"{url}: {OTHER_CONTENT}") from error
            if kind == "mirrored":
                self._add_to_mirror(name, copy, size)
        return size

    def _add_to_mirror(self, name: str, copy: Callable[[IO[bytes]], object], size: int) -> None:
        """Give the mirror a file that the bucket has, and make room for it first."""
        self.make_room(name, size)
        try:
            super().publish(name, copy, replace=True, durable=self._is_durable(name))
        finally:
            self._has_come(name)

    def fetch_all(self, files: Collection[Fetch]) -> None:
        missing = [file for file in files if not self.has_copy(file)]
        if not missing:
            return
        begun = time.perf_counter()
        if len(missing) == 1:
            self.fetch(missing[0])
        else:
            with ThreadPoolExecutor(min(_AT_ONCE, len(missing))) as pool:
                for _ in pool.map(self.fetch, missing):
                    pass
        self.stalls += 1
        self.stall_seconds += time.perf_counter() - begun

    def fetch(self, file: Fetch, *, has_room: bool = False) -> None:
        """Bring a file into the mirror, unless it is there.  One process of this machine fetches it; others wait."""
        is_here = partial(self.has_copy, file)
        key = f"fetch-{fingerprint(file.name)}"
        try:
            with self.shared.alone(file.name):
                if is_here():
                    return
                what = f"a copy of {file.name}"
                with wait_for_claim(key, self.here, is_here, what=what) as claim:
                    if not is_here():
                        self._download(file, claim.beat, has_room=has_room)
        finally:
            self._has_come(file.name)

    def _download(self, file: Fetch, beat: Callable[[], None], *, has_room: bool) -> None:
        name = file.name
        url = self.bucket.full(file.name)

        def damaged(found: str) -> StoreError:
            return StoreError(
                f"{url}: {found}; the object is damaged: pass refresh=True to make it again"
            )

        with explained("read", url):
            for _ in range(_TRIES):
                size = file.size or self.bucket.stat(name).size
                if not has_room:
                    self.make_room(name, size)

                def write(out: IO[bytes], size: int = size) -> None:
                    out.truncate(size)  # other processes count it from now on
                    content = bytearray()
                    for piece in self.bucket.place.pieces_now(url, size):
                        if file.check is not None:
                            content += piece
                        out.write(piece)
                        beat()
                    if file.check is not None:
                        try:
                            file.check(memoryview(content))
                        except StoreError as error:
                            raise damaged(str(error)) from error

                try:
                    self.place.create(name, write, replace=True, durable=self._is_durable(name))
                    return
                except Changed:  # replaced by a `refresh`: take the new one
                    if file.size not in (None, found := self.bucket.stat(name).size):
                        raise damaged(f"{found} bytes, expected {file.size}") from None
                except RemoteError:
                    raise
                except OSError as error:
                    raise StoreError(
                        f"cannot write {self.path(name)}, a copy of {url}: {error.strerror}; free some space there, lower mirror_bytes, or "
                        f"choose another folder with PENSTOCK_MIRROR"
                    ) from error
        raise StoreError(f"{url}: is replaced again and again; run again later")

    def _is_durable(self, name: str) -> bool:
        """Whether a copy must survive a power cut.  A damaged copy of a shard is noticed by its digest, and fetched again."""
        return self.verify == "never" or not name.startswith(f"{SHARDS}/")

    def published(self) -> "RemoteCache":
        found = RemoteCache(self.where, allow_shared=self.place.allow_shared, verify=self.verify)
        found._is_direct = True
        return found

    # The mirror

    def renew(self, name: str) -> None:
        """Objects of a bucket are not pruned."""
        if _kind(name) == "local":
            super().renew(name)

    def keep_open(self, name: str, holder: object) -> None:
        self.shared.open[name, id(holder)] = holder

    def reads(self, reader: ShardReader) -> None:
        self.shared.readers.add(reader)

    @property
    def budget(self) -> int:
        """Bytes of shards that the mirror may hold."""
        if self.mirror_bytes is not None:
            return self.mirror_bytes
        folder = next(each for each in (self.root, *self.root.parents) if each.exists())
        mine = sum(self.in_mirror().values())
        return (shutil.disk_usage(folder).free + mine) // _SHARE_OF_DISK

    def has_copy(self, file: Fetch) -> bool:
        """Whether the mirror has a file.  A copy of another size than is known is removed."""
        found = super().size(file.name)
        if found is None or file.size in (None, found):
            return found is not None
        _log.warning(
            "%s: %d bytes, expected %d; fetched again", self.path(file.name), found, file.size
        )
        self.place.remove(file.name)
        return False

    def in_mirror(self) -> dict[str, int]:
        """The shards in the mirror, and their bytes; the least recently used first."""
        return self._in_mirror()[0]

    def _in_mirror(self) -> tuple[dict[str, int], int]:
        """Also the bytes that other processes fetch now.  Removes what killed processes left."""
        files: dict[str, FileId] = {}
        with explained("list", self.root / SHARDS), contextlib.suppress(FileNotFoundError):
            files = {self._name(file): file for file in self.place.scan(SHARDS)}
        begun = {name for name in files if "/." in name}
        living = begun - remove_dead(self.place, begun)
        shards = sorted(files.keys() - begun, key=lambda name: (files[name].mtime_ns, name))
        theirs = [files[name].size for name in living if f"/.{Owner.me()}-" not in name]
        return {name: files[name].size for name in shards}, sum(theirs)

    def _has_come(self, name: str) -> None:
        with ROOM:  # not while `make_room` adds up what is here and what is coming
            self.shared.coming.pop(name, None)

    def make_room(self, name: str, size: int, *, before: float | None = None) -> bool:
        """Remove what is needed last until `size` more bytes fit, and count them from now on; return whether they may come.

        before: in how many blocks the new shard is needed; nothing that is needed earlier is removed for it.  None: a reader waits for
        it.  What the present blocks need stays, and if that does not fit, the mirror exceeds its budget, with a warning.
        """
        if not name.startswith(f"{SHARDS}/"):
            return True
        shared = self.shared
        with ROOM:
            given = [
                cache.mirror_bytes for cache in shared.caches if cache.mirror_bytes is not None
            ]
            present, theirs = self._in_mirror()
            budget = max(given) if given else self.budget
            coming = sum(
                num for each, num in shared.coming.items() if each not in present and each != name
            )
            excess = sum(present.values()) + theirs + coming + size - budget
            victims = self._victims(present, name, excess, before or 0.0)
            if before is None and sum(map(present.__getitem__, victims)) < excess:
                for store in [
                    *shared.readers
                ]:  # shards that are open, but not in use, can be opened again
                    store.close_shards(keep=lambda key: False)
                victims = self._victims(present, name, excess, 0.0)
            excess -= sum(map(present.__getitem__, victims))
            if excess > 0 and before is not None:
                return False
            for victim in victims:
                self.place.remove(victim)
            if excess > 2 * shared.most_over:
                shared.most_over = excess
                _log.warning(
                    "%s: %s more than its budget of %s are needed at once; set mirror_bytes=%d or more, or a smaller shuffle_window=",
                    *(self.root, in_words(excess), in_words(budget), budget + excess),
                )
            shared.coming[name] = size
            return True

    def _victims(self, present: dict[str, int], name: str, excess: int, before: float) -> list[str]:
        age = {each: float(len(present) - place) for place, each in enumerate(present)}
        plans = self.shared.plans or [age.__getitem__]  # without a plan, the oldest first
        kept = {name, *(opened for opened, _ in self.shared.open)} if excess > 0 else present
        return choose_victims(
            present,
            lambda each: min(plan(each) for plan in plans),
            kept=kept,
            excess=excess,
            before=before,
        )

    def remove(self, name: str) -> None:
        super().remove(name)
        if _kind(name) != "local":
            with explained("remove", self.bucket.full(name)):
                self.bucket.remove(name)

    def remove_unused(self, name: str, *, since: float) -> bool:
        if _kind(name) == "local":
            return super().remove_unused(name, since=since)
        raise StoreError(
            f"{self.bucket.full(name)}: Penstock removes nothing from a bucket, because other machines may be reading it; remove objects "
            f"with the tools of the store: the manifest in stores/ first, then its shards"
        )

    def __reduce__(self) -> tuple[Callable[..., Cache], tuple[str]]:
        make = partial(
            RemoteCache,
            allow_shared=self.place.allow_shared,
            verify=self.verify,
            mirror_bytes=self.mirror_bytes,
        )
        return make, (self.where,)

    def __repr__(self) -> str:
        return f"Cache({self.where!r}, mirror {str(self.root)!r}, {in_words(self.budget)})"


def choose_victims(
    present: Mapping[str, int],
    next_use: NextUse,
    *,
    kept: Collection[str],
    excess: int,
    before: float = 0.0,
) -> list[str]:
    """Return the files to remove, those that are needed last first, until `excess` bytes are free, or no more can be.

    Nothing in `kept` is removed, and nothing that is needed at `before` or earlier.
    """
    uses = {name: next_use(name) for name in present if name not in kept}
    chosen: list[str] = []
    for name in sorted(
        uses, key=lambda name: -uses[name]
    ):  # stable: of those needed last, the first in `present`
        if excess <= 0 or uses[name] <= before:
            break
        chosen.append(name)
        excess -= present[name]
    return chosen


def _copy_all(content: tempfile.SpooledTemporaryFile[bytes], out: IO[bytes]) -> None:
    content.seek(0)
    shutil.copyfileobj(content, out, 1 << 20)


def _kind(name: str) -> str:
    """Say where a file is read: "there" (in the bucket), "mirrored" or "local"."""
    if name.startswith(tuple(f"{folder}/" for folder in _READ_THERE)):
        return "there"
    return "mirrored" if name.startswith(tuple(f"{folder}/" for folder in _MIRRORED)) else "local"


def _mirror_root(url: str) -> Path:
    """PENSTOCK_MIRROR, else a folder next to the local cache: its prune must not count the mirror."""
    given = os.environ.get("PENSTOCK_MIRROR")
    local = default_root()
    above = with_home(given).absolute() if given else local.with_name(f"{local.name}-mirrors")
    return above / fingerprint(url)[:16]

"""Read everything that sources keep in a cache, and hold it to its checksums."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.cache import Cache, Entry
from penstock.errors import PenstockError
from penstock.sources.compressed import SUMS, spool_fault
from penstock.sources.counts import counts_fault
from penstock.sources.sidecar import index_fault
from penstock.sources.spool import is_whole, parse_chunk


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file of a cache, read in full."""

    name: str
    num_bytes: int
    problem: str | None  # what is wrong with it, and what to do


def verify_files(cache: Cache) -> Iterator[CheckedFile]:
    """Offset indexes, row counts, unpacked text and chunks of spooled streams, one after another."""
    kinds = {"offsets": _index, "spools": _spool, "iterables": _chunk}
    for folder, check in kinds.items():
        for entry in cache.entries(folder):
            if not entry.name.endswith((".json", SUMS)) and "/end-" not in entry.name:
                yield _checked(entry, cache, check)


def _checked(entry: Entry, cache: Cache, check: Callable[[Cache, str], str | None]) -> CheckedFile:
    try:
        fault = check(cache, entry.name)
    except PenstockError as error:
        return CheckedFile(entry.name, entry.num_bytes, str(error))
    problem = None if fault is None else f"{cache.path(entry.name)}: {fault}; remove it, it will be made again"
    return CheckedFile(entry.name, entry.num_bytes, problem)


def _index(cache: Cache, name: str) -> str | None:
    data = cache.read(name)
    return counts_fault(data) if name.startswith("offsets/counts/") else index_fault(data, full=True)


def _spool(cache: Cache, name: str) -> str | None:
    return spool_fault(cache, name, full=True)


def _chunk(cache: Cache, name: str) -> str | None:
    chunk = parse_chunk(name.rpartition("/")[2])
    if chunk is None:
        return "not the name of a chunk"
    return None if is_whole(chunk, cache.read(name)) else "not what was written, by the digest in its name"

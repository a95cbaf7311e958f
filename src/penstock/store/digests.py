"""What do these rows say, without reading them again?  The digest of every range, kept as long as the data's files stay as they are.

A source that lives in files gives a stamp: their paths, sizes, inodes and times of change, and how they are read.  The same stamp
means that nobody wrote to them, so the digests still hold; any other, and the rows are digested again.  Keys are always made of
digests: a stamp only saves the reading.  `refresh=True` does not look here.
"""

import contextlib
import json
from typing import Any

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint
from penstock.types import Ints, Source

_VERSION = 2  # raise when some source digests the same rows in another way
_HEX = set("0123456789abcdef")


def stamp(source: Source) -> str | None:
    """A quick look at the files of a source; None where only reading tells whether it is the same."""
    method = getattr(source, "stamp", None)
    found = None if method is None else method()
    return None if found is None else fingerprint(found)


def recall(mark: str | None, borders: Ints, cache: Cache) -> list[str] | None:
    """The digests of the ranges between borders, as they were when the files had this stamp."""
    if mark is None:
        return None
    name = _name(mark, borders)
    with contextlib.suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
        if cache.size(name) is not None:
            value = json.loads(cache.read(name))
            digests = [str(digest) for digest in value["digests"]]
            fits = value["check"] == fingerprint(digests) and len(digests) == len(borders) - 1
            if fits and all(len(digest) == 32 and set(digest) <= _HEX for digest in digests):
                return digests
    return None


def remember(mark: str | None, source: Source, borders: Ints, digests: list[str], cache: Cache) -> None:
    """Keep digests that were made under this stamp, if it still is the source's.  Without them all works, only slower."""
    if mark is None or not digests or stamp(source) != mark:
        return
    value: dict[str, Any] = {"digests": digests, "check": fingerprint(digests)}
    with contextlib.suppress(StoreError):
        cache.publish(_name(mark, borders), lambda file: file.write(json.dumps(value).encode()), replace=True)


def _name(mark: str, borders: Ints) -> str:
    key = fingerprint([_VERSION, mark, borders.tolist()])
    return f"digests/{key[:2]}/{key}.json"

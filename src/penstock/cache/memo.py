"""Remember what was computed: one file of the cache for each answer, named by what the answer is about.

    rows = memo("rows", about=path, stamp=version_of(path), compute=lambda: count_rows(path), cache=cache)

`about` is what was asked.  `stamp` says in which state it was: another stamp is another question, so an answer never becomes wrong and
no file is changed.  Without a stamp nothing tells whether the answer still holds, and it is computed each time.

Remembering only saves time.  A file that is damaged is made again with a warning; where nothing can be written, the answer is computed by
each process.  Warnings that `compute` gives by `warn` are kept with the answer, and given again when it is recalled.
"""

import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import IO, TypeVar

from penstock.cache import checked
from penstock.cache.cache import Cache
from penstock.cache.checked import Json, Loaded
from penstock.cache.claims import wait_for_claim
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint

_Value = TypeVar("_Value")

FOLDER = "memo"
CONTENT = "content"  # the stamp where `about` names contents: then the answer always holds
_VERSION = 1  # raise when the form of the files changes

_log = logging.getLogger("penstock")

# Answers about contents, by the cache and the name: a process asks for many of them again and again.
_kept: dict[tuple[str, str], bytes] = {}
_warnings: ContextVar[list[str] | None] = ContextVar("warnings", default=None)  # None: log them


def memo(
    kind: str, about: Json, stamp: Json, compute: Callable[[], _Value], cache: Cache | None
) -> _Value:
    """Return what `compute` returns: from the cache, or computed and left there.

    kind: a word for the question, and the name of a folder in the cache.
    about: every input of `compute` but what the stamp says: a path, options, versions of code.
    stamp: CONTENT, or what changes with the input, such as sizes and times of files; None if nothing tells.
    compute: returns a JSON value, which comes back through JSON: tuples as lists.  Its errors are not remembered.
    cache: None to keep answers about contents in this process only.
    """
    if stamp is None:
        return compute()
    text = _recall_text(kind, about, stamp, cache)
    if text is None:
        with collected_warnings() as warnings:
            value = compute()
        text = json.dumps([value, warnings], sort_keys=True, allow_nan=False).encode()
        _remember_text(kind, about, stamp, text, cache)
    answer: _Value
    answer, given_warnings = json.loads(text)
    for warning in given_warnings:
        warn(warning)
    return answer


def recall(kind: str, about: Json, stamp: Json, cache: Cache | None) -> Json:
    """Return the answer that `memo` would return without computing it; None if there is none."""
    text = None if stamp is None else _recall_text(kind, about, stamp, cache)
    answer: Json = None
    if text is not None:
        answer, _ = json.loads(text)
    return answer


def remember(kind: str, about: Json, stamp: Json, value: Json, cache: Cache | None) -> None:
    """Leave an answer for `memo` and `recall`; nothing without a stamp."""
    if stamp is not None:
        text = json.dumps([value, []], sort_keys=True, allow_nan=False).encode()
        _remember_text(kind, about, stamp, text, cache)


def memo_file(
    kind: str,
    about: Json,
    stamp: Json,
    write: Callable[[IO[bytes]], Json],
    cache: Cache,
    *,
    what: str = "",
) -> Loaded:
    """Return an answer with bytes, such as a table of offsets: from the cache, or written and left there.

    write: writes the payload front to back and returns the value.  One process writes, and others of all machines wait for it.
    what: is made, as text for those who wait, such as "the index of data.jsonl".
    """
    if stamp is None:
        return _in_memory(write)
    name = _name(kind, about, stamp)

    def load() -> Loaded | None:
        return checked.load(cache, name)

    remembered = load()
    if remembered is not None:
        return remembered
    with wait_for_claim(f"memo-{fingerprint(name)}", cache, load, what=what or kind) as claim:
        remembered = load()  # another process may have made it
        if remembered is not None:
            return remembered
        try:
            checked.publish(cache, name, lambda out: write(_Beating(out, claim.beat)))  # type: ignore[arg-type]
            remembered = load()
        except StoreError as error:
            _log.warning("%s; %s is kept in memory", error, what or kind)
    return remembered or _in_memory(write)


def warn(message: str) -> None:
    """Log a warning; while an answer is computed, keep it with the answer, which logs it."""
    warnings = _warnings.get()
    if warnings is None:
        _log.warning("%s", message)
    else:
        warnings.append(message)


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect warnings instead of logging them."""
    warnings: list[str] = []
    token = _warnings.set(warnings)
    try:
        yield warnings
    finally:
        _warnings.reset(token)


def find_damage(cache: Cache) -> Iterator[tuple[str, int, str | None]]:
    """Check every byte of everything that is remembered: yield names, sizes, and what is wrong."""
    for entry in cache.entries(FOLDER):
        try:
            data = cache.map(entry.name, size=entry.num_bytes)
            damage = checked.fault(data, full=True)
        except StoreError as error:
            damage = str(error)
        if damage is not None:
            damage = f"{cache.path(entry.name)}: {damage}; remove it, it will be made again"
        yield entry.name, entry.num_bytes, damage


def forget_old(kind: str, seconds: float, cache: Cache) -> None:
    """Remove answers that were written so many seconds ago: those that help only while others do the same work."""
    with contextlib.suppress(OSError, StoreError):
        oldest = cache.now() - seconds
        for entry in cache.entries(f"{FOLDER}/{kind}"):
            if entry.used < oldest:
                cache.remove(entry.name)


def _name(kind: str, about: Json, stamp: Json) -> str:
    key = fingerprint([_VERSION, kind, about, stamp])
    return f"{FOLDER}/{kind}/{key[:2]}/{key}"


def _recall_text(kind: str, about: Json, stamp: Json, cache: Cache | None) -> bytes | None:
    name = _name(kind, about, stamp)
    place = ("" if cache is None else cache.where, name)
    if place in _kept or cache is None:
        return _kept.get(place)
    with contextlib.suppress(StoreError):
        loaded = checked.load(cache, name)
        if loaded is not None:
            text = json.dumps(loaded.value).encode()
            if stamp == CONTENT:
                _kept[place] = text
            return text
    return None


def _remember_text(kind: str, about: Json, stamp: Json, text: bytes, cache: Cache | None) -> None:
    name = _name(kind, about, stamp)
    if stamp == CONTENT:
        _kept["" if cache is None else cache.where, name] = text
    if cache is not None:
        with contextlib.suppress(StoreError):  # it only saves time: a shared cache may be read-only
            checked.publish(cache, name, lambda _: json.loads(text), durable=False)


def _in_memory(write: Callable[[IO[bytes]], Json]) -> Loaded:
    out = io.BytesIO()
    value = write(out)
    return Loaded(memoryview(out.getvalue()), value)


class _Beating:
    """A file whose writer shows a sign of life with every write."""

    def __init__(self, out: IO[bytes], beat: Callable[[], None]) -> None:
        self._out = out
        self._beat = beat

    def write(self, data: bytes) -> int:
        self._beat()
        return self._out.write(data)

"""Numbers, names, differences and progress as text for people, and rows spread over a source.  Every room uses these."""

import json
import logging
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

_log = logging.getLogger("penstock")
_FIRST_SECONDS = 0.8  # until work that is under way is talked about
_PROGRESS_SECONDS = 1.0  # between lines about it
_LONG_STAGE = 2.0  # seconds: shorter stages are not talked about

# Shows a line of progress where a log is not read, such as in a notebook; report/progress.py sets it.
progress_shown: "ContextVar[Callable[[str], object] | None]" = ContextVar(
    "progress_shown", default=None
)

_MISSING = object()
_JOINERS = {
    "\u200c",
    "\u200d",
}  # inside words of some languages and inside emoji; they move nothing
_STEERING = {
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
}  # control, format (with bidi), surrogates, line and paragraph separators


def plural(number: int, word: str) -> str:
    """1 row, 2 rows, 1,024 rows."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def size(num_bytes: float) -> str:
    """417 B, 3.0 kB, 1.4 GB."""
    for unit, amount in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= amount:
            return f"{num_bytes / amount:,.1f} {unit}"
    return f"{num_bytes:.0f} B"


def percent(part: float, whole: float) -> str:
    """Return a share in percent that is 0.0% or 100.0% only if it is exact."""
    share = part / whole if whole else 0.0
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def short_number(number: float) -> str:
    """Three digits: 1.24 M."""
    for unit, amount in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= amount:
            return (
                f"{number / amount:.3g} {unit}"
                if number < 999.5 * amount
                else f"{number / amount:,.0f} {unit}"
            )
    return f"{number:,.3g}" if number != int(number) else f"{int(number):,}"


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, an ellipsis where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class ProgressLog:
    """Log once a second how far work has come, if it takes about that long.  Commands show the latest line."""

    def __init__(self, what: str, total: int, count: Callable[[int], str] = "{:,}".format) -> None:
        self._what = what
        self._total = total
        self._count = count
        self._next = time.monotonic() + min(_FIRST_SECONDS, _PROGRESS_SECONDS)
        self._has_logged = False

    def __call__(self, done: int) -> None:
        """Say that so much is done, if a second has passed; after the first line, the end is always said."""
        now = time.monotonic()
        is_end = done >= self._total and self._has_logged
        if now < self._next and not is_end:
            return
        self._next = now + _PROGRESS_SECONDS
        self._has_logged = done < self._total  # the end is said once
        share = f"{100 * done // max(self._total, 1)} %"
        numbers = f"{self._count(done)} of {self._count(self._total)}"
        _log_progress(f"{self._what}: {numbers} ({share})", is_end=is_end)


def log_stage(what: str, *, seconds: float) -> None:
    """Log what begins now and cannot be counted, if it takes long; `seconds` is about how long on a slow core."""
    if seconds >= _LONG_STAGE:
        _log_progress(f"{what} …", is_end=False)


def _log_progress(line: str, *, is_end: bool) -> None:
    _log.info("%s", line, extra={"is_progress": True, "is_end": is_end})
    show = progress_shown.get()
    if show is not None:
        show(line)


def escape(text: object, *, keep: str = "") -> str:
    """`text` with every character that could steer a terminal, or hide, spelled out; characters in `keep` stay.

    For all text from data, file names and errors.
    """
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(
        char if char in keep or not _steers(char) else char.encode("unicode_escape").decode()
        for char in plain
    )


def _steers(char: str) -> bool:
    return unicodedata.category(char) in _STEERING and char not in _JOINERS


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """; did you mean 'packing'? or nothing, to append to an error."""
    from difflib import get_close_matches  # only for an error

    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def spread(total: int, at_most: int) -> list[int]:
    """Up to `at_most` row numbers, evenly spread over `total` rows, the first always among them."""
    if total <= at_most:
        return list(range(total))
    return sorted({place * total // at_most for place in range(at_most)})


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Each key whose value differs, as `key old → new`; values as JSON."""
    return [
        f"{key} {_as_json(old.get(key, _MISSING))} → {_as_json(new.get(key, _MISSING))}"
        for key in sorted({*old, *new})
        if old.get(key, _MISSING) != new.get(key, _MISSING)
    ]


def _as_json(value: Any) -> str:
    return "absent" if value is _MISSING else json.dumps(value, ensure_ascii=False, default=repr)

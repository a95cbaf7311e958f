"""Facts about tokenizers and chat templates: computed once per content, kept in the cache as JSON.

A fact may hold a result of our own code without a version number, because its name covers the source code of `penstock.templates`.  Files
have a checksum and are published by rename.  A cache that is damaged, read-only or full only means that a fact is computed again.
Warnings are kept with the fact that was computed, and logged again when it is recalled.
"""

import contextlib
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache as once
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import Digest, fingerprint

_log = logging.getLogger("penstock")

VERSION = 2  # raise when the form of the files changes
_METADATA = re.compile(r"([\w.]+)-([^-]+)\.dist-info")
_PACKAGE = Path(__file__).parent.parent.parent
_CODE = ("templates", "extras/media")  # folders of the code that facts are computed by

_kept: dict[
    tuple[str, str], str
] = {}  # of this process: (cache, name) → value and warnings as JSON text
_warnings: ContextVar[list[str] | None] = ContextVar(
    "warnings", default=None
)  # None: they are logged


def recall(kind: str, *, about: Any, compute: Callable[[], Any], cache: Cache | None) -> Any:
    """Return the fact `kind` about `about`: from the cache, or computed and left there; without a cache, kept for this process.

    about: a JSON value with every input of `compute`: digests of contents, options, versions; never a path or a time.
    compute: returns a JSON value.  Its errors are not remembered.  Values always come back through JSON: tuples as lists.
    """
    name = facts_name(kind, about)
    place = ("" if cache is None else cache.where, name)
    text = _kept.get(place)
    if text is None and cache is not None:
        text = _read(name, cache)
    if text is None:
        with collected_warnings() as warnings:
            value = compute()
        text = json.dumps({"value": value, "warnings": warnings}, sort_keys=True, allow_nan=False)
        if cache is not None:
            content = json.dumps({"value": text, "check": fingerprint([name, text])}).encode()
            with contextlib.suppress(StoreError):
                cache.publish(name, lambda file: file.write(content), replace=True)
    _kept[place] = text
    known = json.loads(text)
    for warning in known["warnings"]:
        warn(warning)
    return known["value"]


def warn(message: str) -> None:
    """Log a warning; while a fact is computed, keep it with the fact, which logs it."""
    warnings = _warnings.get()
    if warnings is None:
        _log.warning("%s", message)
    else:
        warnings.append(message)


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect warnings instead of logging them."""
    found: list[str] = []
    token = _warnings.set(found)
    try:
        yield found
    finally:
        _warnings.reset(token)


def facts_name(kind: str, about: Any) -> str:
    """The name of one fact in a cache."""
    python = list(sys.version_info[:3])
    key = fingerprint(
        {"version": VERSION, "kind": kind, "about": about, "code": code_digest(), "python": python}
    )
    return f"facts/{key}.json"


def _read(name: str, cache: Cache) -> str | None:
    """The value as JSON text; None if there is none, or if its file is damaged or was written under another name."""
    with contextlib.suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
        if cache.size(name, hold=False) is not None:
            found = json.loads(cache.read(name))
            text = found["value"]
            if isinstance(text, str) and found["check"] == fingerprint([name, text]):
                cache.hold(name)  # also marks it as used, for `cache prune`
                return text
    return None


@once
def code_digest() -> str:
    """A digest of the modules of `penstock.templates`."""
    found = Digest()
    found.update(
        package_version("penstock").encode()
    )  # all there is where source files are not installed
    for folder in _CODE:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            found.update(path.relative_to(_PACKAGE).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()


@once
def package_version(name: str) -> str:
    """The version of an installed package, from the name of its metadata folder: `importlib.metadata` is slow to import."""
    if (found := _installed().get(name)) is not None:
        return found
    from importlib.metadata import version

    return version(name)


@once
def _installed() -> dict[str, str]:
    """Versions of packages by name; the first on the path counts."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            names = [_METADATA.fullmatch(path.name) for path in Path(folder or ".").iterdir()]
            found = {**{match[1].lower(): match[2] for match in names if match}, **found}
    return found

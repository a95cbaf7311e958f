"""Remember what was computed about a tokenizer or a chat template: once per content, in the cache, as JSON.

    value = recall("byte-table", about={"tokenizer": digest}, compute=lambda: …, cache=cache)

`kind` names the question.  `about` is a JSON value with every input of the answer: digests of file contents, options, versions of
the libraries that were asked; never a path or a time.  `compute` returns a JSON value and is a pure function of `about`.

- The name of a file of facts also covers `VERSION`, Python's version and the source code of `penstock.templates`: after an edit of any
  template module, facts are computed again.  So a fact can hold a verdict of our own code, and nobody has to raise a number for it.
- A file holds a checksum over its own name and its value.  One that is damaged, cut short or copied from another name is not used: the
  value is computed again, and the file replaced.
- Files are published by rename.  Two processes that compute the same fact write the same bytes, and neither waits.
- A cache that is missing, read-only or full is no error: the value is computed again next time.  `cache=None` keeps it for this process.
- Errors are not remembered.  To remember a refusal, return it: {"refused": "why"}.
- The value always comes back through JSON, also when it was computed just now: tuples are lists, keys are strings, on the first run too.
"""

import contextlib
import json
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache as once
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import Digest, fingerprint

VERSION = 1  # raise when the form of the files changes
_FOLDER = "facts"
_MOST_KEPT = 1024  # facts kept in this process

_kept: OrderedDict[tuple[str, str], Any] = OrderedDict()  # (cache, name) → value as JSON text


def recall(kind: str, *, about: Any, compute: Callable[[], Any], cache: Cache | None) -> Any:
    """The answer to `kind` about `about`: from the cache, or computed and left there."""
    name = facts_name(kind, about)
    place = ("" if cache is None else str(cache.root), name)
    text = _kept.get(place)
    if text is None and cache is not None:
        text = _read(name, cache)
    if text is None:
        text = json.dumps(compute(), sort_keys=True, allow_nan=False)
        if cache is not None:
            _write(name, text, cache)
    _kept[place] = text
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return json.loads(text)


def facts_name(kind: str, about: Any) -> str:
    """The name in a cache of one fact."""
    python = list(sys.version_info[:3])
    key = fingerprint({"version": VERSION, "kind": kind, "about": about, "code": code_digest(), "python": python})
    return f"{_FOLDER}/{key[:2]}/{key}.json"


@once
def package_version(name: str) -> str:
    """The version of an installed package; looking it up takes a millisecond or two."""
    return version(name)


@once
def code_digest() -> str:
    """A digest of the code that answers: the modules of this package."""
    found = Digest()
    found.update(version("penstock").encode())  # all there is where the source files are not at hand
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.relative_to(Path(__file__).parent).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _read(name: str, cache: Cache) -> str | None:
    """The value as JSON text, or None where there is none that can be trusted."""
    with contextlib.suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
        if cache.size(name, hold=False) is not None:
            found = json.loads(cache.read(name))
            text = found["value"]
            if isinstance(text, str) and found["check"] == _check(name, text):
                cache.hold(name)  # also marks it as used, for `cache prune`
                return text
    return None


def _write(name: str, text: str, cache: Cache) -> None:
    content = json.dumps({"value": text, "check": _check(name, text)}).encode()
    with contextlib.suppress(StoreError):
        cache.publish(name, lambda file: file.write(content), replace=True)


def _check(name: str, text: str) -> str:
    return fingerprint([name, text])

"""A template that is opened when it is first used; until then the cache knows its identity.

Commands on a finished store need a template's identity, to find the store, and the size of its vocabulary.  Both are a function of
the tokenizer's content, the template's name and its options, so they are remembered as a fact (facts.py) and neither a tokenizer nor a
template engine is loaded.  What the template warned about when it was opened is remembered too, and said again.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.templates.facts import package_version, recall
from penstock.templates.registry import open_template
from penstock.templates.tokenizers import Tokenizer
from penstock.types import Record, Samples, Template, encoder_of

_log = logging.getLogger("penstock")

_PACKAGES = ("tokenizers", "fastokens", "jinja2", "minijinja")  # whose versions are part of identities


def remembered_template(
    name: str, tokenizer: Tokenizer | None, options: dict[str, Any], cache: Cache | None
) -> Template:
    """A template by name, opened at once only where the cache does not know it, or where an option is not a plain value."""
    if cache is None or not _is_plain(options):
        return open_template(name, tokenizer, options)
    return RememberedTemplate(name, tokenizer, options, cache)


class RememberedTemplate:
    """Stands for a template.  Everything but its identity and vocabulary size is asked of the template itself, opened then."""

    def __init__(self, name: str, tokenizer: Tokenizer | None, options: dict[str, Any], cache: Cache) -> None:
        self._name, self._tokenizer, self._options, self._cache = name, tokenizer, options, cache
        self._template: Template | None = None
        about = {
            "template": name,
            "options": options,
            # the path for the sake of warnings, which name it
            "tokenizer": None if tokenizer is None else [tokenizer.content, tokenizer.wants_fast, tokenizer.path],
            "versions": [package_version(package) for package in _PACKAGES],
        }
        known = recall("template", about=about, compute=self._learn, cache=cache)
        self._identity: dict[str, Any] = known["identity"]
        self.vocab_size: int = known["vocab_size"]
        if self._template is None:  # else it has just said so
            for warning in known["warnings"]:
                _log.warning("%s", warning)

    def identity(self) -> dict[str, Any]:
        return self._identity

    def with_engine(self, *, fast: bool) -> "RememberedTemplate":
        """The same template; `fast` decides whether fastokens may encode."""
        if self._tokenizer is None or self._tokenizer.wants_fast == fast:
            return self
        return RememberedTemplate(self._name, self._tokenizer.with_engine(fast=fast), self._options, self._cache)

    def encode(self, records: Iterable[Record]) -> Samples:
        return self._opened().encode(records)

    def encoder(self) -> Callable[[Iterable[Record]], Samples]:
        return encoder_of(self._opened())

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return self._opened().decode(input_ids)

    def _opened(self) -> Template:
        if self._template is None:
            with _heard():  # said when the identity was recalled
                self._template = open_template(self._name, self._tokenizer, self._options)
        return self._template

    def _learn(self) -> dict[str, Any]:
        with _heard(say=True) as warnings:
            self._template = open_template(self._name, self._tokenizer, self._options)
        made = {"identity": self._template.identity(), "vocab_size": self._template.vocab_size}
        return {**made, "warnings": warnings}

    def __getattr__(self, name: str) -> Any:
        """What only some templates offer: `rendering`, `num_turns`, `tokenizer` …"""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._opened(), name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_template": None}  # a worker opens it in its own process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return repr(self._opened())


def _is_plain(value: Any) -> bool:
    """Whether JSON keeps the value as it is."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


@contextmanager
def _heard(*, say: bool = False) -> Iterator[list[str]]:
    """Collect the warnings of this thread; pass them on only with `say`."""
    found: list[str] = []
    thread, level, loud = threading.get_ident(), _log.level, _log.isEnabledFor(logging.WARNING)

    def hear(record: logging.LogRecord) -> bool:
        if record.thread != thread or record.levelno < logging.WARNING:
            return True
        found.append(record.getMessage())
        return say and loud

    _log.addFilter(hear)
    if not loud:
        _log.setLevel(logging.WARNING)  # to be remembered for whoever listens another time
    try:
        yield found
    finally:
        _log.setLevel(level)
        _log.removeFilter(hear)

"""A template by its name, tokenizer and options: what the name of a store and its files need is known without opening it.

Commands on a finished store need a template's identity, to find the store, and the size of its vocabulary.  Both depend only on the
tokenizer's content, the template's name and its options, so they are remembered in the cache, and neither a tokenizer nor a template engine
is loaded.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from penstock.cache import Cache
from penstock.cache.memo import collected_warnings
from penstock.templates.chat.steps import step_makers
from penstock.templates.registry import open_template, renders_chat
from penstock.templates.tokenizer.facts import package_version, recall
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Column, Template, columns_of

_PACKAGES = ("tokenizers", "fastokens", "jinja2")  # their versions are part of identities


@dataclass(frozen=True)
class TemplateSpec:
    """What `open_template` takes.  Pickles without the template: each process opens its own when it encodes."""

    name: str
    tokenizer: Tokenizer | None
    options: Mapping[str, Any]
    cache: Cache | None = None

    def __post_init__(self) -> None:
        assert self._known  # refuses wrong options now, not when a worker opens the template

    @cached_property
    def _template(self) -> Template:
        return open_template(self.name, self.tokenizer, dict(self.options))

    @cached_property
    def _known(self) -> dict[str, Any]:
        if self.cache is None or not _is_json(self.options):
            return self._learn()
        known: dict[str, Any] = recall(
            "identity", about=self._about(), compute=self._learn, cache=self.cache
        )
        return known

    def _about(self) -> dict[str, Any]:
        """Everything that the identity depends on."""
        about: dict[str, Any] = {
            "template": self.name,
            "options": self.options,
            "versions": [package_version(package) for package in _PACKAGES],
        }
        if self.tokenizer is not None:
            tokenizer = self.tokenizer
            # with the path, because warnings name it
            about["tokenizer"] = [tokenizer.content, tokenizer.wants_fast, tokenizer.path]
            if renders_chat(self.name, tokenizer, self.options):
                about["steps"] = {
                    name: maker.depends_on(tokenizer, self.options)
                    for name, maker in step_makers().items()
                }
        return about

    def _learn(self) -> dict[str, Any]:
        template = self._template
        columns = [asdict(column) for column in columns_of(template)]
        return {
            "identity": template.identity(),
            "vocab_size": template.vocab_size,
            "columns": columns,
        }

    def identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = self._known["identity"]
        return identity

    @property
    def vocab_size(self) -> int:
        return int(self._known["vocab_size"])

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(**column) for column in self._known["columns"])

    def open(self) -> Template:
        """The template; opened once in each process."""
        with collected_warnings():  # they were logged when the identity was learned or recalled
            return self._template

    def with_engine(self, *, fast: bool) -> "TemplateSpec":
        """The same template; `fast` decides whether fastokens may encode."""
        if self.tokenizer is None or self.tokenizer.wants_fast == fast:
            return self
        return replace(self, tokenizer=self.tokenizer.with_engine(fast=fast))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_template"}

    def __repr__(self) -> str:
        return f"TemplateSpec({self.name!r}, {self.tokenizer!r})"


def _is_json(options: Mapping[str, Any]) -> bool:
    """Whether JSON holds the options as they are, so that they can name what is remembered."""
    try:
        return bool(json.loads(json.dumps(options, allow_nan=False)) == options)
    except (TypeError, ValueError):
        return False

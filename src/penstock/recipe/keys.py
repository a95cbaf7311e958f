"""Which keys has a recipe?  Those of `open`, `prepare` and `Loader`, and of what they hand options to: read from their signatures.

No default and no type is written here a second time.  What is written here is the room of a key: of a data set, of the whole recipe, or of
the process that loads it.
"""

import collections.abc
import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Literal

from penstock import api
from penstock.loader.form import BatchForm
from penstock.loader.loader import Loader
from penstock.plan.settings import PlanSettings
from penstock.recipe.names import CALLED
from penstock.sources.shapes import SHAPES
from penstock.templates import PretokenizedTemplate, PromptCompletionTemplate, Reader, SegmentsTemplate, TextTemplate
from penstock.templates.chat.template import ChatTemplate
from penstock.templates.registry import NAMES, known_options

Room = Literal["open", "template", "prepare", "loader", "process"]

REQUIRED = inspect.Parameter.empty

# Said of the recipe as a whole; everything else of `prepare` is said of a data set.
_OF_ALL = ("cache_dir", "num_proc", "refresh", "cache", "background")
# Of the process that loads: a file that several ranks read cannot know it.
_OF_PROCESS = ("rank", "world_size", "mesh", "collate", "progress")
_NOT_KEYS = ("self", "place", "stores", "options", "weights", "name")

PATHS = ("tokenizer", "cache_dir", "quarantine")  # relative to the recipe
_TEXT = ("tokenizer", "template")  # an object, too, from Python

TEMPLATES: dict[str, Callable[..., Any]] = {
    "text": TextTemplate,
    "prompt_completion": PromptCompletionTemplate,
    "chat": ChatTemplate,
    "messages": Reader,
    "pretokenized": PretokenizedTemplate,
    "segments": SegmentsTemplate,
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key: what takes it, which values, and what it is where nobody gives it."""

    name: str
    room: Room
    accepts: frozenset[str]  # kinds of values, see KINDS
    default: Any = REQUIRED
    owner: str = ""  # what it is an argument of

    @property
    def of_data(self) -> bool:
        return self.room in ("open", "template")


# Kinds of plain values, as errors and the reference call them.
KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    "a number": lambda value: isinstance(value, Real) and not isinstance(value, bool),
    "text": lambda value: isinstance(value, str | os.PathLike),
    "a list": lambda value: isinstance(value, list | tuple | set | frozenset | range),
    "a mapping": lambda value: isinstance(value, dict),
    "anything": lambda value: True,
}


@cache
def keys() -> dict[str, Key]:
    """All keys by name.  A template option that several templates know takes what any of them takes."""
    made: dict[str, Key] = {}
    for name, parameter in _parameters(api.open):
        made[name] = _key(name, "open", parameter.annotation, parameter.default, "open")
    made["options"] = Key("options", "open", frozenset({"a mapping"}), {}, "open")  # the shape's own
    for name, parameter in _parameters(api.prepare):
        room: Room = "process" if name in _OF_PROCESS else "prepare" if name in _OF_ALL else "template"
        made[name] = _key(name, room, parameter.annotation, parameter.default, "prepare")
    for name, parameter in _parameters(Loader.__init__):
        room = "process" if name in _OF_PROCESS else "loader"
        made[name] = _key(name, room, parameter.annotation, parameter.default, "Loader")
    for settings in (PlanSettings, BatchForm):
        for field in fields(settings):
            if field.name not in made and field.name not in _NOT_KEYS:
                default = REQUIRED if field.default is MISSING else field.default
                made[field.name] = _key(field.name, "loader", field.type, default, "Loader")
    for name, found in template_options().items():
        accepts = frozenset(kind for key in found.values() for kind in key.accepts)
        (owner, first), *others = found.items()
        same = all(key.default == first.default for key in found.values())
        made[name] = Key(name, "template", accepts, first.default if same else REQUIRED, ", ".join(found))
        assert owner or others
    return made


@cache
def template_options() -> dict[str, dict[str, Key]]:
    """Options of templates: name → template → key."""
    known = {option for name in NAMES for chat in (False, True) for option in known_options(name, chat=chat)}
    made: dict[str, dict[str, Key]] = {}
    for owner, maker in TEMPLATES.items():
        for name, parameter in _parameters(maker):
            if name in known:
                key = _key(name, "template", parameter.annotation, parameter.default, owner)
                made.setdefault(name, {})[owner] = key
    boolean = _key("chat", "template", bool | None, None, "prompt_completion")
    return {"chat": {"prompt_completion": boolean}, **made}


def takes(template: str, options: dict[str, Any]) -> list[str]:
    """Options that a template by this name takes."""
    return known_options(template, chat=options.get("chat"))


def is_key(name: str) -> bool:
    """Whether a recipe takes this key, under our name for it or another tool's."""
    return name in keys() or name in CALLED


@cache
def source_options() -> dict[str, list[str]]:
    """Options of sources: name → formats that take it.  They stand under `options:`."""
    found: dict[str, list[str]] = {}
    for shape, each in SHAPES.items():
        try:
            opener = getattr(import_module(f"penstock.sources.{each.module}"), each.source)
        except ImportError:  # a package that is not installed; then such files cannot be opened either
            continue
        for option in getattr(opener, "OPTIONS", ()):
            found.setdefault(option, []).append(shape)
    return found


def wrong(key: Key, value: Any) -> str | None:
    """Why a value cannot be this key's, or None."""
    if any(KINDS[kind](value) for kind in key.accepts):
        return None
    expected = sorted(key.accepts - {"null"}) or ["null"]
    return f"{key.name} is {shown(value)} ({kind_of(value)}), expected {' or '.join(expected)}{_hint(key, value)}"


def kind_of(value: Any) -> str:
    return next(kind for kind, fits in KINDS.items() if kind != "anything" and fits(value)) if _is_plain(value) else "?"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _hint(key: Key, value: Any) -> str:
    if "a whole number" in key.accepts:
        if isinstance(value, float) and value.is_integer():
            return f"; write {int(value)}"
        if isinstance(value, str) and value.replace(",", "").replace("_", "").strip().isdecimal():
            return f"; write {int(value.replace(',', '').replace('_', ''))}"
    if "text" in key.accepts and isinstance(value, int | float):
        return f"; put it in quotes: '{str(value).lower()}'"
    return ""


def _is_plain(value: Any) -> bool:
    return any(fits(value) for kind, fits in KINDS.items() if kind != "anything")


def _parameters(maker: Callable[..., Any]) -> Iterable[tuple[str, inspect.Parameter]]:
    for name, parameter in inspect.signature(maker).parameters.items():
        if name not in _NOT_KEYS and parameter.kind is not inspect.Parameter.VAR_KEYWORD and not name.startswith("_"):
            yield name, parameter


def _key(name: str, room: Room, annotation: Any, default: Any, owner: str) -> Key:
    kinds = {"text"} if name in _TEXT and room != "process" else _kinds(annotation)
    return Key(name, room, frozenset(kinds), default, owner)


def _kinds(annotation: Any) -> set[str]:
    """Which plain values an annotation lets in."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(annotation) for kind in _kinds(part)}
    if origin is Literal:
        return {"text"}
    if annotation in (None, type(None)):
        return {"null"}
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if annotation in plain:
        return {plain[annotation]}
    kind = origin or annotation
    if kind is os.PathLike:
        return {"text"}
    if isinstance(kind, type) and issubclass(kind, collections.abc.Mapping):
        return {"a mapping"}
    if isinstance(kind, type) and issubclass(kind, collections.abc.Iterable):
        return {"a list"}
    return {"anything"}

"""The keys of a recipe: the arguments of `open`, `prepare`, `Loader` and the templates, read from their signatures.

Types, defaults and documentation come from there: a parameter is `Annotated` with its documentation, or a documented dataclass field.
"""

import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from penstock import api
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.loader.loader import Loader
from penstock.plan.settings import PlanSettings
from penstock.sources.formats import formats
from penstock.templates.chat.options import ChatOptions
from penstock.templates.chat.steps import step_makers
from penstock.templates.conversation import Reader
from penstock.templates.registry import known_options, template_names
from penstock.templates.shapes import shapes as record_shapes
from penstock.words import shortened

Room = Literal["open", "template", "prepare", "loader", "process"]

REQUIRED = inspect.Parameter.empty

# Arguments of `prepare` that apply to the whole recipe; the others apply to a data set.
_OF_ALL = ("cache_dir", "num_proc", "engine", "refresh", "cache", "background")
# Arguments that differ between the processes that read one file.
_OF_PROCESS = ("rank", "world_size", "mesh", "collate", "progress")
_SETTINGS = (LoaderSettings, PlanSettings, BatchForm)  # they document the parameters of Loader
_NOT_KEYS = ("self", "path", "stores", "options", "weights", "name")
_TEXT = ("tokenizer", "template", "engine")  # in a file; objects too from Python

# Keys that are no parameter of their own.
_OPTIONS = "options of the file format, such as columns, delimiter or record"
_CHAT = "render both sides with the chat template; null: only for query_response, if the tokenizer has a chat template"

PATHS = (
    "tokenizer",
    "cache_dir",
    "quarantine",
    "chat_template",
    "processor",
    "media_root",
    "media_folders",
)  # relative to the recipe

# Kinds of plain values, as errors and the reference name them; the first that fits counts.
_KINDS: dict[str, Any] = {
    "null": type(None),
    "true or false": bool,
    "a whole number": Integral,
    "a number": Real,
    "text": (str, os.PathLike),
    "a mapping": Mapping,
    "a list": Iterable,
    "anything": object,
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key: the function that takes it (room), the kinds of values it accepts, its default and its documentation."""

    name: str
    room: Room
    accepts: frozenset[str]
    default: Any = REQUIRED
    doc: str = ""

    @property
    def of_data(self) -> bool:
        return self.room in ("open", "template")


@cache
def keys() -> dict[str, Key]:
    """Return all keys by name.  An option of several templates accepts what any of them accepts."""
    made: dict[str, Key] = {key.name: key for key in _keys(api.open, "open")}
    made["options"] = Key("options", "open", frozenset({"a mapping"}), {}, _OPTIONS)
    made |= {key.name: key for key in _keys(api.prepare, "template")}
    documented = {key.name: key for each in _SETTINGS for key in _keys(each, "loader")}
    of_loader = {
        key.name: replace(key, doc=documented[key.name].doc)
        for key in _keys(Loader.__init__, "loader")
    }
    made |= {
        **of_loader,
        **{name: key for name, key in documented.items() if name not in of_loader},
    }
    # Loader tells its default from the same number as an argument; a recipe file has plain numbers
    made["epochs"] = replace(made["epochs"], default=documented["epochs"].default)
    for name, found in template_options().items():
        first, *others = found.values()
        accepts = first.accepts.union(*(key.accepts for key in others))
        is_same = all(key.default == first.default for key in others)
        doc = "; ".join(dict.fromkeys(key.doc for key in found.values()))
        made[name] = replace(
            first, accepts=accepts, default=first.default if is_same else REQUIRED, doc=doc
        )
    return made


@cache
def template_options() -> dict[str, dict[str, Key]]:
    """Return the options of templates: name → template → key."""
    known = {
        option
        for name in template_names()
        for chat in (False, True)
        for option in known_options(name, chat=chat)
    }
    chat = Key("chat", "template", frozenset({"null", "true or false"}), None, _CHAT)
    made = {"chat": dict.fromkeys(("prompt_completion", "query_response"), chat)}
    makers: dict[Callable[..., Any], str] = {ChatOptions: "chat", Reader: "messages"}
    makers |= {step.options: "chat" for step in step_makers().values()}
    for shape in record_shapes().values():
        if shape.template is not None:
            makers.setdefault(shape.template, shape.name)
    for maker, template in makers.items():
        for key in _keys(maker, "template"):
            if key.name in known:
                made.setdefault(key.name, {})[template] = key
    return made


def option_doc(name: str, template: str) -> str:
    """Return the documentation of an option of this template; of any other key, that of the key."""
    found = template_options().get(name, {})
    own = record_shapes().get(template)
    for other, key in found.items():
        if other == template or (
            own and other in record_shapes() and record_shapes()[other].template is own.template
        ):
            return key.doc
    return keys()[name].doc


@cache
def source_options() -> dict[str, list[str]]:
    """Return the options of file formats, which a recipe has under `options:`: name → formats that take it."""
    found: dict[str, list[str]] = {}
    for shape, each in formats().items():
        try:
            opener = each.load()
        except (
            ImportError
        ):  # a package that is not installed; then such files cannot be opened either
            continue
        for option in fields(opener.options):
            found.setdefault(option.name, []).append(shape)
    return found


def wrong(key: Key, value: Any) -> str | None:
    """Return why a key does not accept a value, or None if it does."""
    kind = next(kind for kind, known in _KINDS.items() if isinstance(value, known))
    if kind in key.accepts or "anything" in key.accepts:
        return None
    if kind == "a whole number" and "a number" in key.accepts:
        return None
    expected = " or ".join(sorted(key.accepts - {"null"}) or ["null"])
    found = type(value).__name__ if kind == "anything" else kind
    return f"{key.name} is {shown(value)} ({found}), expected {expected}{_hint(key, value)}"


def shown(value: Any) -> str:
    """A value in an error."""
    return shortened(repr(value), 60)


def _hint(key: Key, value: Any) -> str:
    if "a whole number" in key.accepts:
        if isinstance(value, float) and value.is_integer():
            return f"; write {int(value)}"
        if (
            isinstance(value, str)
            and (digits := value.replace(",", "").replace("_", "").strip()).isdecimal()
        ):
            return f"; write {int(digits)}"
    if "text" in key.accepts and isinstance(value, int | float):
        return f"; put it in quotes: '{str(value).lower()}'"
    return ""


def _keys(owner: Callable[..., Any], room: Room) -> Iterator[Key]:
    """The keys that a function or dataclass takes."""
    docs = (
        {each.name: each.metadata.get("doc", "") for each in fields(owner)}
        if is_dataclass(owner)
        else {}
    )
    for name, parameter in inspect.signature(owner).parameters.items():
        if name in _NOT_KEYS or parameter.kind is parameter.VAR_KEYWORD or name.startswith("_"):
            continue
        annotation = parameter.annotation
        doc = docs.get(name, "")
        if typing.get_origin(annotation) is Annotated:
            annotation, doc = typing.get_args(annotation)
        own: Room = "process" if name in _OF_PROCESS else "prepare" if name in _OF_ALL else room
        kinds = {"text"} if name in _TEXT else _kinds(annotation)
        yield Key(name, own, frozenset(kinds), parameter.default, doc)


def _kinds(annotation: Any) -> set[str]:
    """Return the kinds of plain values that a type annotation accepts."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(annotation) for kind in _kinds(part)}
    if origin is Literal:
        return {"text"}
    kind = type(None) if annotation is None else origin or annotation
    return {
        next(
            (
                name
                for name, known in _KINDS.items()
                if isinstance(kind, type) and issubclass(kind, known)
            ),
            "anything",
        )
    }

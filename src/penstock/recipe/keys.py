"""The keys of a recipe: the settings of `open`, `prepare`, `Loader` and the templates, as they are declared in their rooms."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal

from penstock import plugins
from penstock.api import OpenSettings, PrepareSettings
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.plan.settings import PlanSettings
from penstock.settings import REQUIRED, Declared, Setting, declared, kind_of
from penstock.sources.formats import formats
from penstock.templates.chat.options import ChatOptions
from penstock.templates.chat.steps import step_makers
from penstock.templates.conversation import Reader
from penstock.templates.registry import known_options, template_names
from penstock.templates.shapes import shapes as record_shapes
from penstock.words import shortened

Room = Literal["open", "template", "prepare", "loader", "process"]

# Settings that are no keys: data sets and weights are written in another way.
_NOT_KEYS = ("name", "weights")
# Settings of `prepare` that apply to the whole recipe; the others apply to a data set.
_OF_ALL = ("cache_dir", "num_proc", "engine", "refresh", "cache", "background")
# Settings that differ between the processes that read one file.
_OF_PROCESS = ("rank", "world_size", "mesh", "collate", "progress")
_TEXT = ("tokenizer", "template", "engine")  # in a file; objects too from Python

# Keys that are no setting of their own.
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


@dataclass(frozen=True, slots=True)
class Key:
    """A key: the function that takes it (room), the kinds of values it accepts, its default and its documentation."""

    name: str
    room: Room
    accepts: frozenset[str]
    setting: Setting

    @property
    def default(self) -> Any:
        return self.setting.default

    @property
    def doc(self) -> str:
        return self.setting.doc

    @property
    def of_data(self) -> bool:
        return self.room in ("open", "template")


@cache
def keys() -> dict[str, Key]:
    """Return all keys by name.  An option of several templates accepts what any of them accepts."""
    file_options = Setting(name="options", type=dict[str, Any], default={}, doc=_OPTIONS)
    found = _keys(declared(OpenSettings).values(), "open")
    found |= _keys([file_options], "open")
    found |= _keys(declared(PrepareSettings).values(), "template")
    for owner in (LoaderSettings, PlanSettings, BatchForm):
        found |= _keys(declared(owner).values(), "loader")
    for name, by_template in template_options().items():
        found[name] = _merged(list(by_template.values()))
    return found


def _merged(variants: list[Key]) -> Key:
    """Return one key for an option that several templates have."""
    first = variants[0]
    default = first.default
    if any(key.default != default for key in variants):
        default = REQUIRED
    docs = dict.fromkeys(key.doc for key in variants)
    merged = replace(first.setting, default=default, doc="; ".join(docs))
    accepts = first.accepts.union(*(key.accepts for key in variants))
    return replace(first, setting=merged, accepts=accepts)


@cache
def template_options() -> dict[str, dict[str, Key]]:
    """Return the options of templates: name → template → key."""
    known = {
        option
        for name in template_names()
        for chat in (False, True)
        for option in known_options(name, chat=chat)
    }
    chat = Setting(name="chat", type=bool | None, default=None, doc=_CHAT)
    key_of_chat = _keys([chat], "template")["chat"]
    found = {"chat": dict.fromkeys(("prompt_completion", "query_response"), key_of_chat)}
    owners: dict[Callable[..., Any], str] = {ChatOptions: "chat", Reader: "messages"}
    owners |= {step.options: "chat" for step in step_makers().values()}
    for shape in record_shapes().values():
        if shape.template is not None:
            owners.setdefault(shape.template, shape.name)
    for owner, template in owners.items():
        for name, key in _keys(declared(owner).values(), "template").items():
            if name in known:
                found.setdefault(name, {})[template] = key
    return found


def option_doc(name: str, template: str) -> str:
    """Return the documentation of an option of this template; of any other key, that of the key."""
    record_shape = record_shapes().get(template)
    for other, key in template_options().get(name, {}).items():
        other_shape = record_shapes().get(other)
        is_alike = record_shape and other_shape and other_shape.template is record_shape.template
        if other == template or is_alike:
            return key.doc
    return keys()[name].doc


@cache
def source_options() -> dict[str, list[str]]:
    """Return the options of file formats, which a recipe has under `options:`: name → formats that take it."""
    formats_of: dict[str, list[str]] = {}
    for name, file_format in formats().items():
        try:
            opener = file_format.load()
        except ImportError:  # its package is not installed, so such files cannot be opened either
            continue
        for option in fields(opener.options):
            formats_of.setdefault(option.name, []).append(name)
    return formats_of


def wrong(key: Key, value: Any) -> str | None:
    """Return why a key does not accept a value, or None if it does."""
    kind = kind_of(value)
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


def _keys(settings: Iterable[Setting], room: Room) -> dict[str, Key]:
    """Return the keys for settings, each with its room."""
    found = {}
    for setting in settings:
        name = setting.name
        if name in _NOT_KEYS:
            continue
        room_of_key: Room = room
        if name in _OF_PROCESS:
            room_of_key = "process"
        elif name in _OF_ALL:
            room_of_key = "prepare"
        accepts = frozenset({"text"}) if name in _TEXT else setting.kinds
        found[name] = Key(name, room_of_key, accepts, setting)
    return found


def settings_of_extras(function: str) -> dict[str, Setting]:
    """Return the settings that extras and other packages declare for a public function."""
    found: dict[str, Setting] = {}
    for _, plugin in plugins.every("settings"):
        assert isinstance(plugin, Declared)
        if plugin.function == function:
            found |= declared(plugin.settings)
    return found

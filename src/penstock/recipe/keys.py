"""The keys of a recipe: the settings of `open`, `prepare`, `Loader` and the templates, as they are declared in their rooms."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, cast

from penstock import plugins
from penstock.api import OpenSettings, PrepareSettings
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.plan.settings import PlanSettings
from penstock.settings import REQUIRED, Declared, Setting, declared, problem
from penstock.sources.formats import formats
from penstock.templates.chat.options import ChatOptions
from penstock.templates.chat.steps import step_makers
from penstock.templates.conversation import Reader
from penstock.templates.registry import known_options, template_names
from penstock.templates.shapes import shapes as record_shapes

Room = Literal["open", "template", "prepare", "loader", "process"]

# Settings that are no keys: datasets and weights are written in another way.
_NOT_KEYS = ("name", "weights")
# Settings of `prepare` that a dataset may have, too; all others apply to the whole recipe.
_OF_DATA = ("tokenizer", "template", "fan_out")
# Settings that differ between the processes that read one file, so that no file has them.
_OF_PROCESS = ("rank", "world_size", "mesh", "collate", "progress")
# Settings that take objects from Python; in a file they are text.
_TEXT = ("tokenizer", "template", "engine", "filter")

# Keys that are no setting of their own.
_OPTIONS = "options of the file format, such as columns, delimiter or record"
_CHAT = "render prompt and answer with the chat template; null: query_response only, if the tokenizer has a chat template"

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
    for name, key in _keys(declared(PrepareSettings).values(), "prepare").items():
        found[name] = replace(key, room="template") if name in _OF_DATA else key
    for owner in (LoaderSettings, PlanSettings, BatchForm):
        found |= _keys(declared(owner).values(), "loader")
    found |= _keys(settings_of_extras("Loader").values(), "loader")
    for name, by_template in template_options().items():
        found[name] = _merged(by_template)
    return found


def _merged(by_template: Mapping[str, Key]) -> Key:
    """Return one key for an option that several templates have; where it means different things, its text says where."""
    variants = list(by_template.values())
    first = variants[0]
    default = first.default
    if any(key.default != default for key in variants):
        default = REQUIRED
    templates_of: dict[str, list[str]] = {}
    for template, key in by_template.items():
        templates_of.setdefault(key.doc, []).append(template)
    docs = list(templates_of)
    if len(docs) > 1:
        docs = [f"{doc} ({', '.join(templates)})" for doc, templates in templates_of.items()]
    choices: tuple[Any, ...] = ()
    if all(key.setting.choices for key in variants):
        choices = tuple(dict.fromkeys(each for key in variants for each in key.setting.choices))
    merged = replace(first.setting, default=default, doc="; ".join(docs), choices=choices)
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


def _classes_of_options() -> dict[str, type[Any]]:
    """Return the class of the options of each file format, and of iterables."""
    from penstock.sources.hf import HfIterableOptions
    from penstock.sources.stream import StreamOptions

    classes: dict[str, type[Any]] = {}
    for name, file_format in formats().items():
        # without its package, files of a format cannot be opened either
        with suppress(ImportError):
            classes[name] = file_format.load().options
    return {**classes, "iterable": StreamOptions, "iterable dataset": HfIterableOptions}


@cache
def source_options() -> dict[str, list[str]]:
    """Return the options of file formats, which a recipe has under `options:`: name → formats that take it."""
    formats_of: dict[str, list[str]] = {}
    for name, options in _classes_of_options().items():
        if name in formats():
            for option in fields(options):
                formats_of.setdefault(option.name, []).append(name)
    return formats_of


@cache
def file_options() -> dict[str, Setting]:
    """Return what is declared about each option of file formats and iterables.

    An option of several formats has the words of the first; without a default, each of them has one of its own.
    """
    found: dict[str, Setting] = {}
    for options in _classes_of_options().values():
        for name, option in declared(cast(Callable[..., Any], options)).items():
            first = found.setdefault(name, option)
            if option.default != first.default:
                found[name] = replace(first, default=...)
    return found


def wrong(key: Key, value: Any) -> str | None:
    """Return why a key does not accept a value, or None if it does."""
    return problem(key.setting, value, kinds=key.accepts)


def _keys(settings: Iterable[Setting], room: Room) -> dict[str, Key]:
    """Return the keys for settings, each with its room."""
    found = {}
    for setting in settings:
        name = setting.name
        if name in _NOT_KEYS:
            continue
        room_of_key: Room = "process" if name in _OF_PROCESS else room
        accepts = frozenset({"text"}) if name in _TEXT else setting.kinds
        found[name] = Key(name, room_of_key, accepts, setting)
    return found


def settings_of_extras(function: str) -> dict[str, Setting]:
    """Return the settings that extras and other packages declare for a public function."""
    found: dict[str, Setting] = {}
    for _, plugin in plugins.every("settings"):
        assert isinstance(plugin, Declared)
        if plugin.function == function:
            found.update(declared(plugin.settings))
    return found

"""Write penstock/options.py: the keyword arguments of public functions as TypedDicts, for type checkers, editors and `help()`."""

import inspect
import os
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.api import OpenSettings, PrepareSettings
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.plan.settings import PlanSettings
from penstock.recipe.keys import file_options, keys, settings_of_extras, template_options
from penstock.settings import REQUIRED, Setting, declared

FILE = Path(__file__).parents[1] / "options.py"

_HEAD = '''"""Keyword arguments of public functions, with their types.  Written by `python -m penstock.settings`; do not edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

if TYPE_CHECKING:
    from penstock.store import Progress
    from penstock.types import Engine, Template, UnopenedTemplate
'''
_MODULES = ("collections.abc.", "typing.", "penstock.types.", "os.")
_PLUGIN_OPTIONS = Setting(
    name="plugin_options",
    type=Mapping[str, Mapping[str, Any]] | None,
    default=None,
    doc="settings of other packages' plugins, by the name of the plugin",
)


def write() -> None:
    """Write the file."""
    FILE.write_text(text(), encoding="utf-8")


def text() -> str:
    """Return what the file holds."""
    functions = {
        "OpenOptions": ("Keyword arguments of `penstock.open`.", of_open()),
        "PrepareOptions": ("Keyword arguments of `penstock.prepare`.", of_prepare()),
        "LoaderOptions": ("Keyword arguments of `penstock.Loader`.", of_loader()),
        "RecipeOptions": (
            "Keys of a recipe, which `penstock.load` takes in place of what the file says.",
            of_recipe(),
        ),
        "PromptOptions": ("Keyword arguments of `penstock.Prompts`.", of_prompts()),
    }
    parts = [_HEAD]
    for name, (doc, settings) in functions.items():
        parts.append(typed_dict(name, doc, settings))
    parts.append("DEFAULTS: Mapping[str, Mapping[str, Any]] = {")
    for name, (_, settings) in functions.items():
        parts.append(f"    {name!r}: {{{defaults(settings)}}},")
    parts.append("}\n")
    del functions["RecipeOptions"]  # a recipe translates its keys itself, with file and line
    former_names = {name: _former_names(settings) for name, (_, settings) in functions.items()}
    former_values = {name: _former_values(settings) for name, (_, settings) in functions.items()}
    parts.append("# Names and values of 0.2, which are still taken, and what they are called now.")
    parts.append(f"FORMER_NAMES: Mapping[str, Mapping[str, str]] = {former_names!r}")
    parts.append(
        f"FORMER_VALUES: Mapping[str, Mapping[str, Mapping[str, str]]] = {former_values!r}"
    )
    return _formatted("\n".join(parts))


def of_open() -> list[Setting]:
    of_formats = {**file_options(), **settings_of_extras("open")}
    return [*declared(OpenSettings).values(), *of_formats.values(), _PLUGIN_OPTIONS]


def of_prepare() -> list[Setting]:
    found = dict(declared(PrepareSettings))
    for name, by_template in template_options().items():
        variants = [key.setting for key in by_template.values()]
        merged = replace(keys()[name].setting, type=_any_of(variants))
        if merged.default is REQUIRED:  # each template has a default of its own
            merged = replace(merged, default=...)
        found[name] = merged
    return [*found.values(), _PLUGIN_OPTIONS]


def of_loader() -> list[Setting]:
    found = {**declared(LoaderSettings), **declared(PlanSettings), **declared(BatchForm)}
    found |= settings_of_extras("Loader")
    del found["weights"]  # given with the stores
    return [*found.values(), _PLUGIN_OPTIONS]


def of_recipe() -> list[Setting]:
    data = Setting(name="data", type=Any, default=None, doc="the datasets to train on")
    evaluated = Setting(name="eval", type=Any, default=None, doc="the datasets to evaluate on")
    found = {setting.name: setting for setting in of_prepare()}
    settings = [found.get(name, key.setting) for name, key in keys().items()]
    # none of them must be given: the file says the others
    return [
        replace(each, default=None) if each.default is REQUIRED else each for each in settings
    ] + [
        data,
        evaluated,
    ]


def of_prompts() -> list[Setting]:
    found = settings_of_extras("Prompts")
    order = declared(PlanSettings)
    for name in (
        "seed",
        "shuffle",
        "shuffle_window",
        "on_overlong",
        "mix_by",
        "stopping_strategy",
        "block",
    ):
        found[name] = order[name]
    return list(found.values())


def _any_of(variants: list[Setting]) -> Any:
    """Return a type for what any of these settings takes."""
    union = variants[0].type
    for other in variants[1:]:
        union = union | other.type
    return union


def typed_dict(name: str, doc: str, settings: Iterable[Setting]) -> str:
    """Return the class for these settings: each is documented below its key, for editors, and in the docstring, for `help()`."""
    ordered = list(settings)
    lines = [f"class {name}(TypedDict, total=False):", f'    """{doc}', ""]
    for each in ordered:
        lines += _wrapped(f"{each.name}: {_sentence(each.doc)}", hanging=True)
    lines += ['    """', ""]
    for each in ordered:
        words = type_text(each)
        if each.default is REQUIRED:
            words = f"Required[{words}]"
        lines.append(f"    {each.name}: {words}")
        lines += _wrapped(f'"""{_sentence(each.doc)}"""', hanging=False)
    return "\n".join(["", *lines, "", ""])


def type_text(setting: Setting) -> str:
    """Return the type of a setting as code; text with known choices is a Literal, so that editors offer them."""
    code = _code(setting.type)
    choices = [choice for choice in setting.choices if isinstance(choice, str)]
    if choices:
        literal = f"Literal[{', '.join(map(repr, choices))}]"
        parts = [literal if part == "str" else part for part in code.split(" | ")]
        code = " | ".join(parts)
    return code


def _code(annotation: Any) -> str:
    """Return a type as code."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(_code(part) for part in typing.get_args(annotation))
    if annotation is type(None):
        return "None"
    code = inspect.formatannotation(annotation)
    for module in _MODULES:
        code = code.replace(module, "")
    return code.replace("'Progress'", "Progress")


def defaults(settings: Iterable[Setting]) -> str:
    """Return name: default of settings that need not be given, as code."""
    found = {each.name: each.default for each in settings if each.default is not REQUIRED}
    return ", ".join(f"{name!r}: {value!r}" for name, value in found.items())


def _former_names(settings: Iterable[Setting]) -> dict[str, str]:
    return {each.former: each.name for each in settings if each.former is not None}


def _former_values(settings: Iterable[Setting]) -> dict[str, dict[str, str]]:
    return {each.name: dict(each.former_values) for each in settings if each.former_values}


def _sentence(doc: str) -> str:
    return f"{doc[:1].upper()}{doc[1:]}.".replace("\\", "\\\\")


def _wrapped(words: str, *, hanging: bool) -> list[str]:
    """Return lines of at most 100 columns."""
    indent = " " * 4
    return textwrap.wrap(
        words,
        100,
        initial_indent=indent,
        subsequent_indent=2 * indent if hanging else indent,
        break_long_words=False,
    )


def _formatted(code: str) -> str:
    """Return code as `ruff format` writes it, if ruff is installed; a test compares the parsed code."""
    ruff = Path(sys.executable).with_name("ruff")
    if not os.access(ruff, os.X_OK):
        return code
    command = [str(ruff), "format", "--line-length", "100", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout

"""How is a recipe written down?  Only what was given, in the order in which people read it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from penstock.errors import RecipeError
from penstock.recipe.document import is_word
from penstock.recipe.keys import PATHS, REQUIRED, keys

if TYPE_CHECKING:
    from penstock.recipe.recipe import DataSet, Recipe

_AT_PATHS = (*PATHS, "chat_template")


def to_yaml(recipe: "Recipe", folder: str | os.PathLike[str] | None = None) -> str:
    """YAML of a recipe; `Recipe.read` of it, from that folder, gives an equal one."""
    home = os.path.abspath(folder) if folder is not None else None  # noqa: PTH100 - a name only, nothing is asked of the disk
    settings = {name: _setting(name, value, home) for name, value in recipe.settings.items()}
    value: dict[str, Any] = {"data": _sets(recipe.data, home)}
    if recipe.eval_sets:
        value["eval"] = _sets(recipe.eval_sets, home)
    try:
        return _dump({**value, **settings}, width=120)
    except yaml.YAMLError as error:
        raise RecipeError(f"this recipe holds what a file cannot: {error}; pass it to load() instead") from error


def line(name: str, value: Any) -> str:
    """One `key: value`, as a file has it."""
    return _dump({name: value}, width=10_000).rstrip("\n")


def default_text(name: str) -> str:
    """What a key is where nobody gives it, as a file would say it."""
    default = keys()[name].default
    return (
        ""
        if default is REQUIRED
        else line(name, list(default) if isinstance(default, tuple) else default).partition(": ")[2]
    )


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what our reader, or another, would not take for text."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=_style(data))


def _style(text: str) -> str | None:
    if text.isprintable():
        return None if is_word(text) else "'"
    lines = text.split("\n")
    is_block = len(lines) > 1 and all(line.isprintable() and line == line.strip() for line in lines) and bool(lines[0])
    return "|" if is_block else '"'  # in double quotes everything else is spelled out


_Dumper.add_representer(str, _Dumper.represent_str)


def _dump(value: Any, *, width: int) -> str:
    text: str = yaml.dump(_escaped(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)
    return text


def _sets(found: "tuple[DataSet, ...]", home: str | None) -> Any:
    if len(found) == 1 and not found[0].is_named and not found[0].options and found[0].weight is None:
        return _path(found[0].path, home)
    named = all(each.is_named for each in found)
    sets = [_set(each, home, named=named) for each in found]
    return {each.name: value for each, value in zip(found, sets, strict=True)} if named else sets


def _set(data: "DataSet", home: str | None, *, named: bool) -> dict[str, Any]:
    value: dict[str, Any] = {"path": _path(data.path, home)}
    if data.is_named and not named:
        value["name"] = data.name
    if data.weight is not None:
        value["weight"] = int(data.weight) if data.weight.is_integer() else data.weight
    return {**value, **{name: _setting(name, option, home) for name, option in data.options.items()}}


def _setting(name: str, value: Any, home: str | None) -> Any:
    return _path(value, home) if name in _AT_PATHS else _plain(value)


def _path(value: Any, home: str | None) -> Any:
    if isinstance(value, tuple | list):
        return [_path(each, home) for each in value]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if home is not None and isinstance(value, str) and value.startswith(home + os.sep):
        return value[len(home) + 1 :]
    return value if not isinstance(value, Path) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _escaped(value: Any) -> Any:
    """So that what looks like a variable is read as it stands."""
    if isinstance(value, dict):
        return {key: _escaped(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    return value.replace("${", "$${") if isinstance(value, str) else value

"""Build the parts of a recipe: read a YAML file, translate names of other tools, check keys and values, make paths absolute.

Every error names the line, and for an unknown key what to write instead.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import RecipeError, SourceError
from penstock.places.files import exists, is_file, is_folder, is_remote, with_home
from penstock.recipe.keys import PATHS, keys, source_options, wrong
from penstock.settings import shown
from penstock.sources.formats import bare_name
from penstock.sources.hubs import on_hub
from penstock.sources.yaml_lines import MAX_BYTES, Keys, compose, read_yaml
from penstock.templates.tokenizer.files import is_hub_name

_TOP = ("data", "eval")
_OF_SET = ("path", "weight", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One place of data and its own settings."""

    name: str
    path: Any  # a place, as `open` takes it
    weight: float | dict[int, float] | None = None
    options: dict[str, Any] = field(
        default_factory=dict
    )  # of open and prepare, for eval sets also of Loader
    is_named: bool = field(default=True, repr=False)  # False: named after its path
    line: int = field(default=0, compare=False, repr=False)


def location(file: str | Path | None, line: int = 0) -> str:
    """The start of an error: file and line, as far as they are known."""
    return "" if not file else f"{file}:{line}: " if line else f"{file}: "


def local_copy(name: str) -> Path:
    """The file of a recipe: of a URL, a copy of its present version in the local cache."""
    if not is_remote(name):
        return with_home(name)
    from penstock.cache.fetched import fetch_folder

    folder, _, last = name.rpartition("/")
    try:
        return fetch_folder(folder, [last]) / last
    except SourceError as error:
        raise RecipeError(str(error)) from error


def read_document(path: str, text: str | None = None) -> tuple[dict[str, Any], dict[Keys, int]]:
    """The mapping in a file, and the line of every value in it.  text: what the file will hold, if it is not written yet."""
    try:
        raw = local_copy(path).read_bytes() if text is None else text.encode()
    except OSError as error:
        raise RecipeError(
            f"{path}: cannot be read: {error.strerror or error}; check the path"
        ) from error
    value, lines = read_yaml(raw, path, RecipeError)
    if not isinstance(value, dict):
        found = "nothing" if value is None else "a list" if isinstance(value, list) else "one value"
        raise RecipeError(
            f"{path}:1: found {found}, expected keys such as 'data: chat.jsonl' and 'max_length: 4096'"
        )
    return value, lines


def is_recipe(name: str) -> bool:
    """Whether a place is a recipe: a YAML file that is not a list of datasets.  A file that cannot be read counts as one."""
    if not name.lower().endswith((".yaml", ".yml")):
        return False
    path = local_copy(name)
    try:
        if path.stat().st_size > MAX_BYTES:
            return False
        root = compose(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return True  # read_document reports what is wrong
    if isinstance(root, yaml.MappingNode):
        return [getattr(key, "value", None) for key, _ in root.value] != ["datasets"]
    return not isinstance(root, yaml.SequenceNode)


def plain(value: Any) -> Any:
    """Keyword arguments in the form of a file: dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


class DocumentReader:
    """Reads a document into `data`, `eval_sets` and `settings`; `lines` are those of the settings, `notices` are about aliases."""

    def __init__(self, document: dict[str, Any], lines: dict[Keys, int], file: str | None) -> None:
        """lines: of every value; those of translated names are added.  file: of the recipe, None for keyword arguments."""
        self._file = file
        self._lines = lines
        self._folder = _folder_of(file)
        self._template = document.get("template")  # of datasets that name none
        self.notices: list[str] = []

        settings = self._under_our_names(document, (), _TOP)  # first: it adds lines and notices
        if "data" not in settings:
            raise self._error((), "no data; expected 'data: chat.jsonl', or datasets by name")
        data = settings.pop("data")
        eval_data = settings.pop("eval", None)
        self.data = self._sets(data, ("data",))
        self.eval_sets = () if eval_data is None else self._sets(eval_data, ("eval",))
        if any(data_set.name == "train" for data_set in self.eval_sets):
            raise self._error(("eval",), "an eval set cannot be called train; choose another name")
        self.settings = {name: self._value(value, (name,)) for name, value in settings.items()}
        self.lines = {name: lines.get((name,), 0) for name in settings}

    def _under_our_names(
        self, found: dict[str, Any], at: Keys, extra: tuple[str, ...]
    ) -> dict[str, Any]:
        """Translate aliases.  `extra` are the names that are allowed here next to the keys."""
        is_switch = isinstance(found.get("packing"), bool)  # other tools say so whether to pack
        if not is_switch and all(name in extra or name in keys() for name in found):
            return dict(found)
        from penstock.aliases import GIVES_WAY, OF_TEMPLATES

        template = found.get("template", self._template)
        of_template = OF_TEMPLATES.get(template, {}) if isinstance(template, str) else {}
        made: dict[str, Any] = {}
        as_given: dict[str, str] = {}  # our key → the key that set it
        unused = self._unused_packing_key(found, at)
        for name, value in found.items():
            place = (*at, name)
            if not isinstance(name, str):
                raise self._error(place, f"{name!r} as a key, expected a word")
            if name == unused:
                continue
            settings = {name: value}
            if (name == "packing" and is_switch) or (name not in extra and name not in keys()):
                settings = (
                    {of_template[name]: value}
                    if name in of_template
                    else self._translated(value, place, extra)
                )
                if name in GIVES_WAY:
                    settings = {
                        ours: value for ours, value in settings.items() if ours not in found
                    }
                settings = {
                    ours: keys()[ours].setting.current_value(value) if ours in keys() else value
                    for ours, value in settings.items()
                }
                read_as = ", ".join(f"{ours}: {_short(value)}" for ours, value in settings.items())
                what = (
                    f"is read as {read_as}"
                    if read_as
                    else "is not needed: what it asks for is the default"
                )
                self._notice(place, f"{name} {what}")
            twice = next((ours for ours in settings if ours in made), None)
            if twice and name not in GIVES_WAY:
                line = self._lines.get((*at, twice))
                where = f" in line {line}" if line else ""
                raise self._error(
                    place,
                    f"{twice} is given twice: as {name}, and as {as_given[twice]}{where}; keep one",
                )
            made |= settings
            as_given |= dict.fromkeys(settings, name)
            self._lines |= {(*at, ours): self._lines.get(place, 0) for ours in settings}
        return made

    def _unused_packing_key(self, found: dict[str, Any], at: Keys) -> str | None:
        """Return the key without effect, if one key says whether to pack and another says how."""
        from penstock.aliases import PACKING_STRATEGY, PACKING_SWITCHES

        switch = next(
            (name for name in PACKING_SWITCHES if isinstance(found.get(name), bool)), None
        )
        if switch is None or PACKING_STRATEGY not in found:
            return None
        unused, other = (switch, PACKING_STRATEGY) if found[switch] else (PACKING_STRATEGY, switch)
        self._notice((*at, unused), f"{unused} is not used: {other} decides")
        return unused

    def _translated(self, value: Any, at: Keys, extra: tuple[str, ...]) -> dict[str, Any]:
        """Our keys and values for a key of another tool."""
        from penstock.aliases import ALIASES, PACKING_SWITCHES

        name = str(at[-1])
        alias = ALIASES.get(PACKING_SWITCHES[1] if name == "packing" else name)
        if alias is None:
            raise self._error(at, unknown_key(name, extra))
        settings = alias.translate(value)
        if isinstance(settings, str):
            raise self._error(at, f"{name}: {settings}")
        if alias.values is None and isinstance(
            value, dict | list
        ):  # its lines are found under our name too
            places = {
                place[len(at) :]: line
                for place, line in self._lines.items()
                if place[: len(at)] == at
            }
            self._lines |= {
                (*at[:-1], alias.keys[0], *below): line for below, line in places.items()
            }
        return {"path": value} if "data" in settings and extra is _OF_SET else settings

    def _value(self, value: Any, at: Keys) -> Any:
        """The checked value of a key, paths absolute."""
        name = str(at[-1])
        if name not in keys():  # an old name of a key of datasets stands for it
            raise self._error(at, unknown_key(name, ()))
        key = keys()[name]
        current = key.setting.current_value(value)
        if current is not value:
            self._notice(at, f"{name}: {value} is read as {name}: {current}")
            value = current
        if key.room == "process" and self._file:
            why = f"{name} differs between the processes that read this recipe; pass it: load(…, {name}=…)"
            raise self._error(at, why)
        wrong_kind = (
            wrong(key, value) if self._file or key.accepts != {"text"} else None
        )  # from Python: objects too
        if wrong_kind:
            raise self._error(at, wrong_kind)
        if self._folder is None or name not in PATHS:
            return value
        if isinstance(value, list):  # of folders: media_folders
            return [
                self._path_of_key(part, at, self._folder) if isinstance(part, str) else part
                for part in value
            ]
        return self._path_of_key(value, at, self._folder) if isinstance(value, str) else value

    def _path_of_key(self, value: str, at: Keys, folder: str) -> str:
        """A path in a recipe, relative to the recipe's folder."""
        name = str(at[-1])
        if (
            is_remote(folder)
            and name in ("quarantine", "media_root", "media_folders")
            and not Path(value).is_absolute()
            and not is_remote(value)
        ):
            raise self._error(
                at, f"{name} is a local path, and this recipe is not local; write an absolute path"
            )
        beside = (
            self._absolute(value) if "{" not in value else ""
        )  # a chat template may be written out
        if name == "chat_template" and not (beside and is_file(beside)):
            return value  # or the name of one that the tokenizer has
        if (
            name in ("tokenizer", "processor")
            and is_hub_name(value)
            and not (exists(beside) or is_file(f"{beside}/tokenizer.json"))
        ):
            return value
        return self._absolute(value)

    def _absolute(self, place: str) -> str:
        if self._folder is None or "://" in place:
            return place
        path = os.path.join(self._folder, os.path.expanduser(place))  # noqa: PTH111, PTH118 - may be a glob, or choose rows
        scheme, mark, rest = path.partition("://")
        return f"{scheme}{mark}{os.path.normpath(rest)}" if mark else path  # a bucket has no `..`

    def _place(self, value: str) -> str:
        """Return an absolute path or a URL; `org/name` is a dataset on the hub if that path does not exist next to the recipe."""
        return on_hub(value, folder=self._folder or "") or self._absolute(value)

    def _sets(self, value: Any, at: Keys) -> tuple[DataSet, ...]:
        """The datasets under `data:` or `eval:`: a place, one mapping with a path, a list of those, or mappings by name."""
        if isinstance(value, dict) and not any(map(_is_place, value.items())):
            made = [self._set(part, (*at, name), name) for name, part in value.items()]
        elif isinstance(value, list) and any(
            isinstance(part, dict) and (self._file or any(map(_is_place, part.items())))
            for part in value
        ):  # from Python, a list of mappings without a path is a list of records
            made = [self._set(part, (*at, place), None) for place, part in enumerate(value)]
        else:
            made = [self._set(value, at, None)]
        if not made:
            raise self._error(
                at,
                f"{at[0]} has no datasets; expected '{at[0]}: chat.jsonl', or datasets by name",
            )
        for number, each in enumerate(made):
            if any(each.name == other.name for other in made[:number]):
                why = f"two datasets are called {each.name!r}; give one of them another name"
                raise RecipeError(f"{location(self._file, each.line)}{why}")
        return tuple(made)

    def _set(self, value: Any, at: Keys, name: str | None) -> DataSet:
        is_eval = at[0] == "eval"
        found = (
            self._under_our_names(value, at, _OF_SET)
            if isinstance(value, dict)
            else {"path": value}
        )
        if "path" not in found:
            which = f"dataset {name!r}" if name else "a dataset"
            raise self._error(at, f"{which} has no path; expected 'path: chat.jsonl'")
        path = self._path(found.pop("path"), (*at, "path") if isinstance(value, dict) else at)
        weight = self._weight(found.pop("weight"), (*at, "weight")) if "weight" in found else None
        if "name" in found:
            name = found.pop("name")
            if not isinstance(name, str) or not name:
                raise self._error(
                    (*at, "name"), f"name is {shown(name)}, expected text; put it in quotes"
                )
        for key in found:
            if keys()[key].room == "prepare" or not (is_eval or keys()[key].of_data):
                raise self._error(
                    (*at, key), f"{key} applies to the whole recipe; write it at the top"
                )
        options = {key: self._value(part, (*at, key)) for key, part in found.items()}
        called = name or data_set_name(path)
        line = self._lines.get(at, 0)
        return DataSet(
            name=called,
            path=path,
            weight=weight,
            options=options,
            is_named=name is not None,
            line=line,
        )

    def _path(self, value: Any, at: Keys) -> Any:
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return tuple(self._place(each) for each in value)
        if isinstance(value, str) and value:
            return self._place(value)
        if self._file or value is None or value == "":
            expected = "expected a file, a glob or a folder, or a list of those"
            raise self._error(at, f"path is {shown(value)}, {expected}")
        return value  # from Python: records, a source, a dataset

    def _weight(self, value: Any, at: Keys) -> Any:
        if at[0] == "eval":
            raise self._error(
                at, "eval sets are loaded one by one and take no weight; leave it out"
            )
        if isinstance(value, dict):  # a table of weights over steps or tokens
            points = {str(point).replace("_", ""): weight for point, weight in value.items()}
            if "0" not in points or not all(point.isdecimal() for point in points):
                expected = "expected a table of whole numbers, such as {0: 0.7, 10000: 0.5}, that begins at 0"
                raise self._error(at, f"weight is {shown(value)}, {expected}")
            return {int(point): self._weight(weight, at) for point, weight in points.items()}
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 < value < math.inf
        ):
            expected = (
                "expected a number above 0, or a table of them; leave the dataset out instead of 0"
            )
            raise self._error(at, f"weight is {shown(value)}, {expected}")
        return float(value)

    def _notice(self, at: Keys, what: str) -> None:
        self.notices.append(f"{location(self._file, self._lines.get(at, 0))}{what}")

    def _error(self, at: Keys, why: str) -> RecipeError:
        return RecipeError(f"{location(self._file, self._lines.get(at, 0) if at else 0)}{why}")


def _folder_of(file: str | None) -> str | None:
    """Return the folder or URL that paths in a recipe are relative to; None if the recipe is not a file."""
    if not file:
        return None
    if is_remote(file):
        return file.rpartition("/")[0]
    return str(Path(file).absolute().parent)


def _is_place(pair: tuple[str, Any]) -> bool:
    """Whether a key holds the path of a dataset; else it is the name of one."""
    name, value = pair
    if name == "path" or isinstance(value, dict):
        return name == "path"
    from penstock.aliases import PLACES

    return name in PLACES


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "…"
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown_key(name: str, extra: tuple[str, ...]) -> str:
    """The text of an error about a key that a recipe does not take; `extra` are the names allowed here next to the keys."""
    from penstock.aliases import HINTS, did_you_mean_setting

    if name in _TOP:
        return f"{name} belongs at the top of a recipe, not inside a dataset"
    if name in _OF_SET:
        example = "path: …" if name == "path" else f"path: …, {name}: …"
        return f"{name} belongs inside a dataset; write data: {{some_name: {{{example}}}}}"
    start = f"unknown key {name!r}"
    if name in HINTS:
        return f"{start}: {HINTS[name]}"
    if formats := source_options().get(name):
        return (
            f"{start}: it is an option of the source ({', '.join(formats)}) and belongs under options:, "
            f"as options: {{{name}: …}}"
        )
    hint = did_you_mean_setting(name, [*extra, *keys(), *source_options()])
    if not hint:
        return f"{start}; `penstock init` writes a recipe with the usual keys, docs/reference/recipe.md lists all"
    is_of_source = any(f"'{option}'" in hint for option in source_options())
    return f"{start}{hint[:-1]}, under options:?" if is_of_source else f"{start}{hint}"


def data_set_name(path: Any) -> str:
    """The name of a dataset without one: its file without the suffix, or the folder of several files."""
    first = path[0] if isinstance(path, tuple | list) and path else path
    if not isinstance(first, str):
        return "data"
    parts = [part for part in first.split("@[")[0].replace("\\", "/").split("/") if part]
    plain = [part for part in parts if not any(mark in part for mark in "*?[")]
    if isinstance(path, tuple | list) and len(path) > 1 and len(plain) > 1:
        plain = plain[:-1]
    if not plain:
        return "data"
    if plain[-1] in (".", ".."):
        return Path(first).resolve().name or "data"
    if is_remote(first):  # a name costs no request
        return bare_name(plain[-1].partition("@")[0]) or "data"
    return plain[-1] if is_folder(first) else bare_name(plain[-1]) or plain[-1]

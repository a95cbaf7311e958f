"""A recipe as one frozen value: datasets and settings, under the names of the arguments of `open`, `prepare` and `Loader`.

    recipe = Recipe.read("recipe.yaml")                    # or Recipe.of("chat.jsonl", tokenizer="t", max_length=4096)
    recipe.changed(max_length=8192).to_yaml()

It holds only what was given; defaults stay in the signatures.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import PenstockError, PlanError, RecipeError
from penstock.loader.layout import BatchForm
from penstock.places.files import is_file, is_folder, is_remote, read, with_home
from penstock.plan.packing import PACKINGS
from penstock.plan.settings import PlanSettings, tabled, weights_as_text
from penstock.recipe.document import DataSet, DocumentReader, location, plain, read_document
from penstock.recipe.keys import PATHS, keys
from penstock.settings import notice_once
from penstock.sources.formats import suffix_of
from penstock.sources.yaml_lines import TAG, Keys, scalar
from penstock.templates.registry import known_options
from penstock.words import shortened

TRAIN = "train"
_EVAL_DEFAULTS = {
    "epochs": 1,
    "shuffle": False,
    "last_step": "pad",
}  # one pass, in the order of the file, every sample
_NOT_OF_EVAL = (
    *("mix_by", "stopping_strategy", "skip_steps", "per_epoch", "schedule", "interpolate"),
    *("max_steps", "max_tokens"),
)
_OF_EVERY_TEMPLATE = ("tokenizer", "template", "fan_out")

_FOR_DATA = (
    "`penstock init {file}` writes a recipe for data; or in Python: "
    "penstock.Loader(penstock.prepare('{file}', tokenizer=…), batch_size=…, max_length=…)"
)


def _is_json_lines(file: str) -> bool:
    """Return whether a name says JSON Lines: a file with one record would be read as YAML."""
    return suffix_of(file) in (".jsonl", ".ndjson")


def _data_error(file: str) -> RecipeError:
    return RecipeError(
        f"{file}: this is data, expected a recipe (YAML); {_FOR_DATA.format(file=file)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Datasets, settings and eval sets.  Recipes with the same content are equal, whatever file they come from."""

    data: tuple[DataSet, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    eval_sets: tuple[DataSet, ...] = ()
    file: str | None = field(default=None, compare=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)  # of the settings
    notices: tuple[str, ...] = field(default=(), compare=False)  # about aliases

    @staticmethod
    def read(path: "str | os.PathLike[str] | Recipe", *, text: str | None = None) -> "Recipe":
        """Read a recipe from a file; a Recipe is returned as it is.  text: what the file will hold, if it is not written yet."""
        if isinstance(path, Recipe):
            return path
        if not isinstance(path, str | os.PathLike):
            raise RecipeError(
                f"found a {type(path).__name__}, expected the path of a recipe; {_FOR_DATA.format(file='DATA')}"
            )
        file = os.fspath(path)
        file = file if is_remote(file) else str(with_home(file))
        if text is None and (is_folder(file) or (_is_json_lines(file) and is_file(file))):
            raise _data_error(file)
        try:
            document = read_document(file, text)
        except RecipeError as error:
            is_of_data = suffix_of(file) not in ("", ".yaml", ".yml")
            if text is None and is_of_data and is_file(file):
                raise _data_error(file) from error
            raise
        recipe = _built(*document, file)
        recipe.check()
        return recipe

    @staticmethod
    def of(data: Any, **settings: Any) -> "Recipe":
        """Make a recipe of keyword arguments, under the same names as in a file."""
        recipe = _built(plain({"data": data, **settings}))
        recipe.check()
        return recipe

    def changed(self, **changes: Any) -> "Recipe":
        """Return a recipe with other settings.

        A key of datasets applies to all of them, in place of their own value.  `options` are added to those that the recipe has.
        """
        if not changes:
            return self
        made = _built(plain({"data": "-", **changes}))

        def updated(data: DataSet, also: tuple[str, ...] = ()) -> DataSet:
            new = {
                name: value
                for name, value in made.settings.items()
                if name in data.options or name in also
            }
            return replace(data, options=_updated(data.options, new))

        of_eval = (
            *_EVAL_DEFAULTS,
            "skip",
            "per_epoch",
        )  # an eval set does not get these from the recipe
        recipe = replace(
            self,
            data=made.data if "data" in changes else tuple(updated(each) for each in self.data),
            eval_sets=made.eval_sets
            if "eval" in changes
            else tuple(updated(each, of_eval) for each in self.eval_sets),
            settings=_updated(self.settings, made.settings),
            lines={name: line for name, line in self.lines.items() if name not in made.settings},
            notices=(*self.notices, *made.notices),
        )
        recipe.check()
        return recipe

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that `load` takes: "train", and the eval sets by name."""
        return (TRAIN, *(each.name for each in self.eval_sets))

    def part(self, name: str) -> tuple[DataSet, ...]:
        """The datasets of a part; "eval" is the eval set if there is exactly one."""
        if name == TRAIN:
            return self.data
        chosen = tuple(each for each in self.eval_sets if each.name == name)
        if not chosen and name == "eval" and len(self.eval_sets) == 1:
            return self.eval_sets
        if not chosen:
            known = ", ".join(self.parts)
            raise RecipeError(
                f"{location(self.file)}unknown part {name!r}, expected one of {known}"
            )
        return chosen

    def open_options(self, data: DataSet) -> dict[str, Any]:
        """Keyword arguments of `open` for this dataset."""
        chosen = _of_rooms({**self.settings, **data.options}, "open")
        return {**chosen.pop("options", {}), **chosen}

    def prepare_options(self, data: DataSet) -> dict[str, Any]:
        """Keyword arguments of `prepare` that decide which tokens come out: tokenizer, template and its options, fan_out."""
        own = _of_rooms(data.options, "template")
        shared = _of_rooms(self.settings, "template")
        template = own.get("template", shared.get("template", "auto"))
        if template != "auto" and isinstance(template, str):
            chat = own.get("chat", shared.get("chat"))
            known = {*known_options(template, chat=chat), *_OF_EVERY_TEMPLATE}
            shared = {
                name: value for name, value in shared.items() if name in known
            }  # the rest is for other datasets
        options = {**shared, **own}
        if "chat_template" in options:
            options["chat_template"] = _template_text(options["chat_template"])
        return options

    def run_options(self) -> dict[str, Any]:
        """Keyword arguments of `prepare` that change no token: cache_dir, num_proc …"""
        return _of_rooms(self.settings, "prepare")

    def loader_options(self, part: str = TRAIN, *, can_be_cut: bool = True) -> dict[str, Any]:
        """Keyword arguments of `Loader`.

        An eval set gives every sample once: overlong ones are cut unless the recipe says otherwise, where samples can be cut.
        """
        shared = _of_rooms(self.settings, "loader", "process")
        shared.pop("progress", None)
        if part == TRAIN:
            return shared
        (chosen,) = self.part(part)
        kept = {name: value for name, value in shared.items() if name not in _NOT_OF_EVAL}
        if (
            kept.get("balance") == "block"
        ):  # which orders rows by cost, and an eval set is in the order of the file
            kept["balance"] = "rank"
        options = {**kept, **_EVAL_DEFAULTS, **_of_rooms(chosen.options, "loader", "process")}
        packing = PACKINGS.get(str(options.get("packing")))
        cuts_everywhere = packing is not None and packing.cuts
        if can_be_cut and not cuts_everywhere:
            options.setdefault("on_overlong", "truncate")
        return options

    def plan_settings(self, part: str = TRAIN, *, can_be_cut: bool = True) -> PlanSettings:
        """The settings that decide the order of a part's rows."""
        weights = [each.weight for each in self.part(part)]
        of_loader = self.loader_options(part, can_be_cut=can_be_cut)
        options = {"max_length": keys()["max_length"].default, **of_loader}
        known = {each.name for each in fields(PlanSettings)}
        return PlanSettings(
            **{name: value for name, value in options.items() if name in known},
            weights=weights_as_text(tabled(weights, ramps=False)[0][1])
            if part == TRAIN and all(weights)
            else None,
        )

    def mixture(self, stores: Mapping[str, Any], part: str = TRAIN) -> Any:
        """The first argument of `Loader`: a store, stores by name, or stores by name with their weights."""
        chosen = self.part(part)
        if len(chosen) == 1 and (
            part != TRAIN or (not chosen[0].is_named and chosen[0].weight is None)
        ):
            return stores[chosen[0].name]
        if all(each.weight is None for each in chosen):
            return {each.name: stores[each.name] for each in chosen}
        return {each.name: (stores[each.name], each.weight) for each in chosen}

    @contextlib.contextmanager
    def with_location(self, data: DataSet) -> Iterator[None]:
        """Add the dataset and its line to errors raised inside."""
        try:
            yield
        except PenstockError as error:
            if not self.file:
                raise
            line = self._line_of_setting(str(error), data)
            raise error.at(f"{location(self.file, line)}dataset {data.name!r}: ") from error

    def _line_of_setting(self, message: str, data: DataSet) -> int:
        """Return the line of the setting that an error names, as in train_on='user'; else the line of the dataset."""
        for name in re.findall(r"\b([a-z_]+)=", message):
            if name in self.lines and name not in data.options:
                return self.lines[name]
        return data.line

    def check(self) -> None:
        """Raise what the plan and the batch would raise later, with file and line."""
        bare = next((each for each in self.data if each.weight is None), None)
        if bare and any(each.weight for each in self.data):
            raise self._error(
                bare.line,
                f"dataset {bare.name!r} has no weight and others have; give all of them one, or none",
            )
        for part in self.parts:
            self._check_part(part)
        self._check_templates()

    def _check_part(self, part: str) -> None:
        own = self.part(part)[0] if part != TRAIN else None
        options = self.loader_options(part)
        try:
            settings = self.plan_settings(part)
            BatchForm(
                **{
                    each.name: options[each.name]
                    for each in fields(BatchForm)
                    if each.name in options
                }
            )
        except PlanError as error:
            named = [
                (found.start(), name)
                for name in options
                if (found := re.search(rf"\b{name}\b", str(error)))
            ]
            first = min(named, default=(0, ""))[1]
            raise self._error(
                own.line if own and first in own.options else self.lines.get(first, 0), error
            ) from error
        if self.settings.get("background") and not settings.is_local:
            where = f" of eval set {part!r}" if own else ""
            raise self._error(
                self.lines.get("background", 0),
                f"background: true makes shards while they are used, and shuffle_window: {settings.shuffle_window}{where} shuffles all "
                f"shards together, so the first batch would need every one of them; write shuffle_window: 16 to shuffle 16 shards "
                f"at a time, or shuffle: false, or leave background out",
            )

    def _check_templates(self) -> None:
        """Refuse an option at the top that no dataset takes."""
        known = {*_OF_EVERY_TEMPLATE}
        names: dict[str, None] = {}  # in order
        for each in (*self.data, *self.eval_sets):
            name = each.options.get("template", self.settings.get("template", "auto"))
            if not isinstance(name, str) or name == "auto":
                return
            names[name] = None
            try:
                known.update(
                    option for chat in (False, True) for option in known_options(name, chat=chat)
                )
            except PenstockError as error:
                line = each.line if "template" in each.options else self.lines.get("template", 0)
                raise self._error(line, error) from error
        for name in _of_rooms(self.settings, "template"):
            if name not in known:
                why = f"none of the templates here ({', '.join(names)}) has an option {name}; leave it out"
                raise self._error(self.lines.get(name, 0), why)

    def _error(self, line: int, why: object) -> RecipeError:
        return RecipeError(f"{location(self.file, line)}{why}")

    def to_yaml(self, folder: str | os.PathLike[str] | None = None) -> str:
        """The recipe as YAML, paths below `folder` relative to it.  `Recipe.read` in that folder gives an equal recipe."""
        base = os.path.abspath(folder) if folder is not None else None  # noqa: PTH100 - a name only
        sets = {"data": self.data, "eval": self.eval_sets}
        return dump(
            {
                **{name: _written_sets(some, base) for name, some in sets.items() if some},
                **_written(self.settings, base),
            }
        )

    def __repr__(self) -> str:
        data = ", ".join(
            each.name + (f" ({_short(each.weight)})" if each.weight is not None else "")
            for each in self.data
        )
        sets = f"; eval {', '.join(each.name for each in self.eval_sets)}" if self.eval_sets else ""
        settings = "".join(
            f"; {name} {shortened(str(value), 40)}" for name, value in self.settings.items()
        )
        return f"Recipe({f'{self.file!r}: ' if self.file else ''}{data}{sets}{settings})"


def _built(
    document: dict[str, Any], lines: dict[Keys, int] | None = None, file: str | None = None
) -> Recipe:
    built = DocumentReader(document, lines or {}, file)
    for notice in built.notices:
        notice_once(notice)
    return Recipe(
        data=built.data,
        settings=built.settings,
        eval_sets=built.eval_sets,
        file=file,
        lines=built.lines,
        notices=tuple(built.notices),
    )


def _updated(given: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with new ones; options of the file format are added."""
    options = (
        {"options": {**given["options"], **new["options"]}}
        if "options" in given and "options" in new
        else {}
    )
    return {**given, **new, **options}


def _of_rooms(options: Mapping[str, Any], *rooms: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if keys()[name].room in rooms}


def _template_text(given: Any) -> Any:
    """Return the text of a chat template, given as text or as a file."""
    if not isinstance(given, str | os.PathLike) or "{" in str(given):
        return given
    path = Path(given)
    if (
        not is_remote(given)
        and not path.is_file()
        and path.suffix not in (".jinja", ".jinja2", ".j2")
    ):
        return given  # the name of a template that the tokenizer has
    try:
        return read(given).decode() if is_remote(given) else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot read a chat template there: {error}") from error


def _written_sets(found: tuple[DataSet, ...], base: str | None) -> Any:
    """Datasets as they are written: one bare path, by name, or as a list."""
    if (
        len(found) == 1
        and not found[0].is_named
        and not found[0].options
        and found[0].weight is None
    ):
        return relative(found[0].path, base)
    written = [
        {
            "path": relative(each.path, base),
            **({} if each.weight is None else {"weight": _plain_weight(each.weight)}),
            **_written(each.options, base),
        }
        for each in found
    ]
    if all(each.is_named for each in found):
        return {each.name: one for each, one in zip(found, written, strict=True)}
    return [
        one | ({"name": each.name} if each.is_named else {})
        for each, one in zip(found, written, strict=True)
    ]


def _plain_weight(weight: Any) -> Any:
    if isinstance(weight, dict):
        return {point: _plain_weight(part) for point, part in weight.items()}
    return int(weight) if weight.is_integer() else weight


def _short(weight: Any) -> str:
    return (
        f"{weight:g}"
        if isinstance(weight, float)
        else ", ".join(f"{p}: {part:g}" for p, part in weight.items())
    )


def _written(options: Mapping[str, Any], base: str | None) -> dict[str, Any]:
    return {
        name: relative(value, base) if name in PATHS else value for name, value in options.items()
    }


def relative(value: Any, base: str | None) -> Any:
    """Return a path, or a list of paths, relative to the folder `base` if it is below `base`."""
    if isinstance(value, tuple | list):
        return [relative(each, base) for each in value]
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if base is None or not isinstance(path, str):
        return path
    return "." if path == base else path.removeprefix(f"{base}{os.sep}")


def dump(value: Any, *, width: int = 120) -> str:
    """YAML that `Recipe.read` reads back as the same value."""
    try:
        text: str = yaml.dump(
            _escaped(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width
        )
    except yaml.YAMLError as error:
        raise RecipeError(
            f"this recipe holds a value that YAML cannot: {error}; pass it to load() instead"
        ) from error
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that this reader, or another, would take for something else."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        lines = data.split("\n")
        if data.isprintable():
            style = None if _is_text(data) else "'"
        elif (
            len(lines) > 1
            and lines[0]
            and all(part.isprintable() and part == part.strip() for part in lines)
        ):
            style = "|"
        else:
            style = '"'
        return self.represent_scalar(f"{TAG}str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _is_text(text: str) -> bool:
    try:
        return isinstance(scalar(text), str)
    except ValueError:
        return False


def _escaped(value: Any) -> Any:
    """Plain lists and dicts, with `${` escaped."""
    if isinstance(value, Mapping):
        return {key: _escaped(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(part) for part in value]
    return value.replace("${", "$${") if isinstance(value, str) else value

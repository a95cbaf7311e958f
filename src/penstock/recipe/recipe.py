"""What is the whole job?  One frozen value: data sets and settings, under the names that `open`, `prepare` and `Loader` have for them.

    recipe = Recipe.read("recipe.yaml")                    # or Recipe.of("chat.jsonl", tokenizer="t", max_length=4096)
    recipe.changed(max_length=8192).to_yaml()

It holds what was given and nothing else: defaults stay where they are, in the signatures.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.errors import PenstockError, PlanError, RecipeError
from penstock.loader.form import BatchForm
from penstock.plan.settings import PlanSettings, weights_as_text
from penstock.recipe.build import Builder
from penstock.recipe.document import Item, from_python, read_document
from penstock.recipe.keys import keys, takes

_log = logging.getLogger("penstock")

TRAIN = "train"
_EVAL_DEFAULTS = {"epochs": 1, "shuffle": False, "tail": "pad"}  # one pass, in the order of the file, nothing left out
_NOT_OF_EVAL = ("mix_by", "stop", "skip", "per_epoch")
_JINJA = (".jinja", ".jinja2", ".j2")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One place of data, and what is said of it alone."""

    name: str
    path: Any  # a place, as `open` takes it
    weight: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of open, of prepare, and in eval sets of Loader
    is_named: bool = field(default=True, repr=False)  # or called after its place
    line: int = field(default=0, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _data_set, (_thawed(self),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Data sets, settings and eval sets.  Equal when they say the same, wherever they were written."""

    data: tuple[DataSet, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    eval_sets: tuple[DataSet, ...] = ()
    file: str | None = field(default=None, compare=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)  # of the settings
    notices: tuple[str, ...] = field(default=(), compare=False)  # names of other tools that were accepted

    @staticmethod
    def read(path: "str | os.PathLike[str] | Recipe") -> "Recipe":
        """The recipe in a file; a recipe is returned as it is."""
        if isinstance(path, Recipe):
            return path
        file = Path(path).expanduser()
        return _built(read_document(file), file)

    @staticmethod
    def of(data: Any, **settings: Any) -> "Recipe":
        """From keyword arguments, under the same names as in a file."""
        return _built(from_python({"data": data, **settings}), None)

    def changed(self, **changes: Any) -> "Recipe":
        """With other settings.  A key of data sets counts for all of them, also for those that have a word of their own."""
        given = {name: value for name, value in changes.items() if name not in ("data", "eval")}
        made = _built(from_python({**changes, "data": changes.get("data", "-")}), None, check=False)
        settings = {**self.settings, **made.settings}
        data = made.data if "data" in changes else tuple(_without(each, given) for each in self.data)
        own = {name: made.settings[name] for name in (*_EVAL_DEFAULTS, "skip", "per_epoch") if name in made.settings}
        sets = made.eval_sets if "eval" in changes else tuple(_without(each, given, own) for each in self.eval_sets)
        lines = {name: line for name, line in self.lines.items() if name not in made.settings}
        recipe = replace(
            self, data=data, eval_sets=sets, settings=MappingProxyType(settings), lines=lines,
            notices=(*self.notices, *made.notices),
        )  # fmt: skip
        recipe.check()
        return recipe

    def with_source_options(self, options: Mapping[str, Any]) -> "Recipe":
        """With these options of the source (what stands under `options:`) beside those that each data set has."""
        if not options:
            return self

        def added(given: Mapping[str, Any]) -> Mapping[str, Any]:
            return MappingProxyType({**given, "options": {**given.get("options", {}), **options}})

        def of(data: DataSet) -> DataSet:
            return replace(data, options=added(data.options)) if "options" in data.options else data

        sets, evals = tuple(map(of, self.data)), tuple(map(of, self.eval_sets))
        return replace(self, data=sets, eval_sets=evals, settings=added(self.settings))

    @property
    def parts(self) -> tuple[str, ...]:
        """What `load` can be asked for: "train", and the eval sets by name."""
        return (TRAIN, *(each.name for each in self.eval_sets))

    def part(self, name: str) -> tuple[DataSet, ...]:
        """The data sets of a part; "eval" is the eval set, where there is one."""
        if name == TRAIN:
            return self.data
        chosen = [each for each in self.eval_sets if each.name == name]
        if not chosen and name == "eval" and len(self.eval_sets) == 1:
            chosen = list(self.eval_sets)
        if not chosen:
            listed = ", ".join(self.parts)
            raise RecipeError(f"{self._place()}there is no part {name!r}, expected one of {listed}")
        return tuple(chosen)

    def open_options(self, data: DataSet) -> dict[str, Any]:
        """Keyword arguments of `open` for this data set."""
        chosen = self._chosen(data, "open")
        return {**chosen.pop("options", {}), **chosen}

    def prepare_options(self, data: DataSet) -> dict[str, Any]:
        """Keyword arguments of `prepare` that decide which tokens come out: tokenizer, template and its options, fan_out."""
        own = {name: value for name, value in data.options.items() if keys()[name].room == "template"}
        shared = {name: value for name, value in self.settings.items() if keys()[name].room == "template"}
        template = own.get("template", shared.get("template", "auto"))
        if template != "auto" and isinstance(template, str):
            known = {*takes(template, {**shared, **own}), "tokenizer", "template", "fan_out"}
            shared = {name: value for name, value in shared.items() if name in known}  # said of the other data sets
        options = {**shared, **own}
        if "chat_template" in options:
            options["chat_template"] = _template_text(options["chat_template"])
        return options

    def run_options(self) -> dict[str, Any]:
        """Keyword arguments of `prepare` that only say how: where the cache is, how many processes …"""
        return {name: value for name, value in self.settings.items() if keys()[name].room == "prepare"}

    def loader_options(self, part: str = TRAIN) -> dict[str, Any]:
        """Keyword arguments of `Loader`."""
        rooms = ("loader", "process")
        shared = {name: value for name, value in self.settings.items() if keys()[name].room in rooms}
        shared.pop("progress", None)
        if part == TRAIN:
            return shared
        (chosen,) = self.part(part)
        own = {name: value for name, value in chosen.options.items() if keys()[name].room in rooms}
        return {**{k: v for k, v in shared.items() if k not in _NOT_OF_EVAL}, **_EVAL_DEFAULTS, **own}

    def plan_settings(self, part: str = TRAIN) -> PlanSettings:
        """What decides the order of a part's rows."""
        weights = [each.weight for each in self.part(part)]
        options = {"max_length": keys()["max_length"].default, **self.loader_options(part)}
        known = {each.name for each in fields(PlanSettings)}
        return PlanSettings(
            **{name: value for name, value in options.items() if name in known},
            weights=weights_as_text(weights) if part == TRAIN and all(weights) else None,
        )

    def mixture(self, stores: Mapping[str, Any], part: str = TRAIN) -> Any:
        """What `Loader` takes: a store, stores by name, or with their weights."""
        chosen = self.part(part)
        if len(chosen) == 1 and (part != TRAIN or (not chosen[0].is_named and chosen[0].weight is None)):
            return stores[chosen[0].name]
        if all(each.weight is None for each in chosen):
            return {each.name: stores[each.name] for each in chosen}
        return {each.name: (stores[each.name], each.weight) for each in chosen}

    @contextlib.contextmanager
    def blaming(self, data: DataSet) -> Iterator[None]:
        """What goes wrong in here is this data set's: the error says where it stands."""
        try:
            yield
        except PenstockError as error:
            if not self.file:
                raise
            raise type(error)(f"{self.file}:{data.line}: data set {data.name!r}: {error}") from error

    def check(self) -> None:
        """Refuse what the plan and the batch would refuse, with the line where it stands."""
        weights = [each.weight for each in self.data]
        if any(weights) and None in weights:
            bare = next(each for each in self.data if each.weight is None)
            raise RecipeError(
                f"{self._place(bare.line)}data set {bare.name!r} has no weight and others have; give all of them one, or none"
            )
        for part in self.parts:
            self._check_part(part)
        self._check_templates()

    def _check_part(self, part: str) -> None:
        own = self.part(part)[0].options if part != TRAIN else {}
        options = self.loader_options(part)
        form = {name: options[name] for name in (each.name for each in fields(BatchForm)) if name in options}
        for make in (lambda: self.plan_settings(part), lambda: BatchForm(**form)):
            try:
                make()
            except PlanError as error:
                first = _named_in(str(error), options.keys())
                line = self.part(part)[0].line if first in own else self.lines.get(first, 0)
                raise RecipeError(f"{self._place(line)}{error}") from error
        settings = self.plan_settings(part)
        if self.settings.get("background") and not settings.is_local:
            where = "" if part == TRAIN else f" of eval set {part!r}"
            raise RecipeError(
                f"{self._place(self.lines.get('background', 0))}background: true makes shards while they are used, and window: "
                f"{settings.window}{where} shuffles all shards together, so the first batch would need every one of them; write "
                f"window: 16 to shuffle 16 shards at a time, or shuffle: false, or leave background out"
            )

    def _check_templates(self) -> None:
        """An option at the top that no data set takes would be dropped in silence."""
        every = (*self.data, *self.eval_sets)
        names = [each.options.get("template", self.settings.get("template", "auto")) for each in every]
        if not all(isinstance(name, str) and name != "auto" for name in names):
            return
        with self._blaming_template():
            known = {option for name in names for chat in (False, True) for option in takes(name, {"chat": chat})}
        for name in self.settings:
            if keys()[name].room == "template" and name not in {*known, "tokenizer", "template", "fan_out"}:
                listed = ", ".join(dict.fromkeys(names))
                raise RecipeError(
                    f"{self._place(self.lines.get(name, 0))}none of the templates here ({listed}) has an option {name}; leave it out"
                )

    @contextlib.contextmanager
    def _blaming_template(self) -> Iterator[None]:
        try:
            yield
        except PenstockError as error:
            line = self.lines.get("template") or next(
                (each.line for each in self.data if "template" in each.options), 0
            )
            raise RecipeError(f"{self._place(line)}{error}") from error

    def _chosen(self, data: DataSet, room: str) -> dict[str, Any]:
        given = {**self.settings, **data.options}
        return {name: value for name, value in given.items() if keys()[name].room == room}

    def _place(self, line: int = 0) -> str:
        return "" if not self.file else f"{self.file}:{line}: " if line else f"{self.file}: "

    def to_yaml(self, folder: str | os.PathLike[str] | None = None) -> str:
        """A file that says the same; paths below `folder` relative to it."""
        from penstock.recipe.written import to_yaml

        return to_yaml(self, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return _recipe, (_thawed(self),)

    def __repr__(self) -> str:
        data = ", ".join(each.name + (f" ({each.weight:g})" if each.weight is not None else "") for each in self.data)
        sets = f"; eval {', '.join(each.name for each in self.eval_sets)}" if self.eval_sets else ""
        settings = "".join(f"; {name} {_short(value)}" for name, value in self.settings.items())
        return f"Recipe({f'{self.file!r}: ' if self.file else ''}{data}{sets}{settings})"


def _built(document: Item, file: Path | None, *, check: bool = True) -> Recipe:
    builder = Builder(document, file)
    data = tuple(_data_set(each) for each in builder.data)
    recipe = Recipe(
        data=data,
        settings=MappingProxyType(builder.settings),
        eval_sets=tuple(_data_set(each) for each in builder.eval_sets),
        file=str(file) if file else None,
        lines=MappingProxyType(builder.lines),
        notices=tuple(builder.notices),
    )
    for notice in recipe.notices:
        _log.warning("%s", notice)
    if check:
        recipe.check()
    return recipe


def _data_set(parts: dict[str, Any]) -> DataSet:
    return DataSet(**{**parts, "options": MappingProxyType(parts["options"])})


def _without(data: DataSet, changes: Mapping[str, Any], own: Mapping[str, Any] = MappingProxyType({})) -> DataSet:
    """Without words of its own about what changes, but for those that it would not hear from the recipe."""
    kept = {name: value for name, value in data.options.items() if name not in changes}
    return replace(data, options=MappingProxyType({**kept, **own}))


def _thawed(value: Any) -> dict[str, Any]:
    """The fields of a frozen value; read-only mappings do not travel between processes."""
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: dict(part) if isinstance(part, MappingProxyType) else part for name, part in found.items()}


def _recipe(parts: dict[str, Any]) -> Recipe:
    return Recipe(
        **{**parts, "settings": MappingProxyType(parts["settings"]), "lines": MappingProxyType(parts["lines"])}
    )


def _template_text(given: Any) -> Any:
    """A chat template itself, or the name of a file that holds it."""
    if not isinstance(given, str | os.PathLike) or "{" in str(given):
        return given
    path = Path(given)
    if not path.is_file() and path.suffix not in _JINJA:
        return given  # a name that the tokenizer knows
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot read a chat template there: {error}") from error


def _named_in(message: str, names: Iterable[str]) -> str:
    """The key that an error speaks of first."""
    found = [(match.start(), name) for name in names if (match := re.search(rf"\b{name}\b", message))]
    return min(found, default=(0, ""))[1]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"

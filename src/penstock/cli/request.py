"""Options that commands share, and the recipe and loader that are made of them.

A command about data is a function of `Request` and of its own options.  The help of an option that is a key of a recipe is the
documentation of that key; it is read when help is printed, so that commands start quickly.
"""

import functools
import json
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import screen

if TYPE_CHECKING:
    from penstock.loader import Loader
    from penstock.recipe import Recipe
    from penstock.recipe.run import OpenSet
    from penstock.report.text import TextBlock

COUNT = click.IntRange(min=1)
FROM_0 = click.IntRange(min=0)

RECIPE = ("tokenizer", "template", "train_on", "chat_template", "num_proc")
LOADER = ("part", "max_length", "batch_size", "world_size")
_LIST = re.compile(
    r"\[\s*(\w[\w.-]*(?:\s*,\s*\w[\w.-]*)*)\s*\]"
)  # as a recipe writes it, without quotes
_DATA = "a recipe (.yaml); or files, globs, folders, such as chat.jsonl@[:1000]."
_KEY_VALUE = "Any key of a recipe, or option of the source, such as eos=false or record=file; again for more."


_Function = Callable[..., Any]


class KeyOption(click.Option):
    """An option that is a key of a recipe, and has its documentation."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from penstock.recipe.keys import keys

        doc = keys()[str(self.name)].doc
        self.help = f"{doc[0].upper()}{doc[1:]}."
        return super().get_help_record(ctx)


def _read_template(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{value}: {error}") from error


def of_cache(function: _Function) -> _Function:
    """Add the options of every command."""
    shown = click.option("--json", is_flag=True, help="Print one JSON value, for scripts.")
    return click.option("--cache-dir", cls=KeyOption)(shown(function))


_SPECIAL: dict[
    str, dict[str, Any]
] = {  # shared options that are not keys of a recipe, or take other values
    "chat_template": {
        "callback": _read_template,
        "metavar": "FILE",
        "help": "File with the chat template.",
    },
    "name": {"help": "Name of this data."},
    "part": {"default": "train", "help": "Of a recipe: train, or the name of an eval set."},
    "world_size": {"cls": KeyOption, "type": COUNT, "default": 1},
    **{
        name: {"cls": KeyOption, "type": COUNT} for name in ("num_proc", "max_length", "batch_size")
    },
}


def command(
    *names: str, metavar: str = "RECIPE|DATA", about: str = _DATA
) -> Callable[[_Function], click.Command]:
    """Make a command of a function of `Request` and of its own options.  `names` are the shared options that it takes."""

    def make(function: _Function) -> click.Command:
        @functools.wraps(function)
        def call(data: tuple[str, ...], option: tuple[str, ...], json: bool, **more: Any) -> None:
            shared = {name: more.pop(name) for name in (*names, "cache_dir")}
            part = shared.pop("part", "train")
            world_size = shared.pop("world_size", 1)
            given = {name: value for name, value in shared.items() if value is not None}
            level = logging.WARNING if json else logging.INFO
            with screen.library_log(level):
                request = Request(
                    data=list(data),
                    keys=_recipe_keys(parse_options(option)),
                    given=given,
                    part=part,
                    world_size=world_size,
                    json=json,
                )
                function(request, **more)

        has_output = any(
            each.name == "output" for each in getattr(function, "__click_params__", ())
        )
        flags = ["--option"] if has_output else ["-o", "--option"]
        made = click.option(*flags, multiple=True, metavar="KEY=VALUE", help=_KEY_VALUE)(
            of_cache(call)
        )
        for name in reversed(names):
            made = click.option(
                f"--{name.replace('_', '-')}", **_SPECIAL.get(name, {"cls": KeyOption})
            )(made)
        made = click.argument("data", nargs=-1, required=True, metavar=f"{metavar}...")(made)
        return click.command(function.__name__, epilog=f"{metavar}: {about}")(made)

    return make


@dataclass(frozen=True, slots=True)
class Request:
    """What a command line says about the data."""

    data: list[str]
    keys: dict[str, Any]  # given as KEY=VALUE
    given: dict[str, Any]  # given as options of their own
    part: str = "train"
    world_size: int = 1
    json: bool = False

    def answer(self, value: Any, pieces: "Iterable[TextBlock]") -> None:
        """Print a value as JSON for scripts, or laid out for people."""
        from penstock.report.numbers import plain

        if self.json:
            screen.as_json(plain(value))
        else:
            screen.show(pieces)

    def recipe(self, **more: Any) -> "Recipe":
        """The recipe that is named, or one of the data that is named; with all keys of the command line."""
        from penstock.recipe import Recipe
        from penstock.recipe.document import is_recipe

        changes = {**self.keys, **self.given, **more}
        name = changes.pop("name", None)
        if len(self.data) == 1 and is_recipe(self.data[0]):
            if name is not None:
                raise click.UsageError("--name is for data; a recipe names its own")
            return Recipe.read(self.data[0]).changed(**changes)
        place = self.data[0] if len(self.data) == 1 else self.data
        return Recipe.of({"path": place, **({} if name is None else {"name": name})}, **changes)

    def loader(self, recipe: "Recipe") -> "Loader":
        """The loader of a recipe, to ask about: rank 0, numpy output, and a batch size of 1 if the recipe has none."""
        from penstock.recipe import run

        progress = "none" if self.json else "auto"
        changed = recipe.changed(progress=progress, **self._of_process(recipe))
        return run.load(changed, part=self.part)

    def prepared_loader(self, recipe: "Recipe", opened: "list[OpenSet]") -> "Loader | None":
        """The same, if all stores are in the cache already; else None."""
        from penstock.recipe import run

        return run.load_prepared(recipe, opened, part=self.part, **self._of_process(recipe))

    def _of_process(self, recipe: "Recipe") -> dict[str, Any]:
        rank = {"rank": 0, "world_size": self.world_size, "output": "numpy", "pin_memory": False}
        rank["max_dropped"] = 1.0  # the command shows what is lost; a Loader that trains refuses
        return {"batch_size": recipe.loader_options(self.part).get("batch_size", 1), **rank}


def parse_options(words: tuple[str, ...]) -> dict[str, Any]:
    """Parse KEY=VALUE pairs.  A value is JSON if it parses as JSON, a list of words such as [a, b], or else text."""
    made: dict[str, Any] = {}
    for option in words:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise click.UsageError(f"{option!r}: expected KEY=VALUE")
        try:
            made[key] = json.loads(value)
        except ValueError:
            listed = _LIST.fullmatch(value)
            made[key] = [word.strip() for word in listed[1].split(",")] if listed else value
    return made


def _recipe_keys(given: dict[str, Any]) -> dict[str, Any]:
    """Keys of a recipe; an option of a source, such as record, goes under `options`."""
    if not given:
        return {}
    from penstock.recipe.aliases import ALIASES
    from penstock.recipe.keys import keys, source_options

    own = {
        name
        for name in given
        if name not in keys() and name not in ALIASES and name in source_options()
    }
    made = {name: value for name, value in given.items() if name not in own}
    return (
        {**made, "options": {**made.get("options", {}), **{name: given[name] for name in own}}}
        if own
        else made
    )

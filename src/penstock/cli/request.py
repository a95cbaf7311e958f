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
    from click.shell_completion import CompletionItem

    from penstock.loader import Loader
    from penstock.recipe import Recipe
    from penstock.recipe.run import OpenSet
    from penstock.report.text import TextBlock


class _Number(click.IntRange):
    """A whole number; help shows N, and an error says the range."""

    name = "n"

    def _describe_range(self) -> str:
        return ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(click.INT.convert(value, param, ctx))
        if self.min is not None and number < self.min:
            self.fail(f"{number} is too small, expected {self.min} or more", param, ctx)
        return number


COUNT = _Number(min=1)
FROM_0 = _Number(min=0)

RECIPE = ("tokenizer", "template", "train_on", "chat_template", "num_proc")
LOADER = ("part", "max_length", "batch_size", "world_size")
_LIST = re.compile(
    r"\[\s*(\w[\w.-]*(?:\s*,\s*\w[\w.-]*)*)\s*\]"
)  # as a recipe writes it, without quotes
_DATA = "a recipe (.yaml); or files, globs, folders, such as chat.jsonl@[:1000]."
_KEY_VALUE = "Set any key of a recipe, or option of the source, such as eos=false or record=file; can be repeated."
_KEY_OF_OUTPUT = re.compile(r"[a-z_]+=")


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


def complete_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Let the shell complete an argument with the names of files: click completes nothing for one that is any text."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


class Command(click.Command):
    """A command whose help lists its own options first, then the keys of a recipe that it takes, then what all commands have."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {
            "Options": [],
            "Keys of the recipe": [],
            "General options": [],
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections[_section(parameter)].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _section(parameter: click.Parameter) -> str:
    if parameter.name in ("cache_dir", "json", "quiet", "verbose") or "--help" in parameter.opts:
        return "General options"
    if isinstance(parameter, KeyOption) or parameter.name in ("settings", "chat_template"):
        return "Keys of the recipe"
    return "Options"


def talks(function: _Function) -> _Function:
    """Add --quiet and --verbose, and show the library's log accordingly."""

    @functools.wraps(function)
    def call(*args: Any, quiet: bool, verbose: bool, **more: Any) -> Any:
        if quiet and verbose:
            raise click.UsageError("give one of --quiet and --verbose")
        level = logging.DEBUG if verbose else logging.INFO
        if quiet or more.get("json"):
            level = logging.WARNING
        with screen.library_log(level, notes=not quiet):
            return function(*args, **more)

    shown = click.option("-q", "--quiet", is_flag=True, help="Print only the answer and warnings.")
    detailed = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Print more about what is done; `check`: also what passed.",
    )
    return shown(detailed(call))


def of_cache(function: _Function) -> _Function:
    """Add the options of every command about data or the cache."""
    shown = click.option("--json", is_flag=True, help="Print one JSON value, for scripts.")
    return click.option("--cache-dir", cls=KeyOption)(shown(talks(function)))


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
        own_options = list(getattr(function, "__click_params__", []))
        has_output = any(option.name == "output" for option in own_options)

        @functools.wraps(function)
        def call(
            data: tuple[str, ...],
            settings: tuple[str, ...],
            former_settings: tuple[str, ...],
            json: bool,
            **more: Any,
        ) -> None:
            shared = {name: more.pop(name) for name in (*names, "cache_dir")}
            if has_output:
                _refuse_key_as_output(more["output"])
            part = shared.pop("part", "train")
            world_size = shared.pop("world_size", 1)
            given = {name: value for name, value in shared.items() if value is not None}
            context = click.get_current_context()
            request = CommandRequest(
                data=list(data),
                keys=_recipe_keys(parse_options((*settings, *former_settings))),
                given=given,
                part=part,
                world_size=world_size,
                json=json,
                verbose=context.params["verbose"],
            )
            function(request, **more)

        # click lists options in the order of their decorators from the top, so the first to be applied is listed last
        call.__dict__["__click_params__"] = []
        made = of_cache(call)
        if not has_output:
            made = click.option(
                "-o", multiple=True, hidden=True, expose_value=False, callback=_refuse_o
            )(made)
        made = click.option("--option", "former_settings", multiple=True, hidden=True)(made)
        made = click.option(
            "-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help=_KEY_VALUE
        )(made)
        for name in reversed(names):
            made = click.option(
                f"--{name.replace('_', '-')}", **_SPECIAL.get(name, {"cls": KeyOption})
            )(made)
        made.__dict__["__click_params__"] += own_options
        made = click.argument(
            "data",
            nargs=-1,
            required=True,
            metavar=f"{metavar}...",
            shell_complete=complete_files,
        )(made)
        name = function.__name__.removesuffix("_")  # state_ has an argument called state
        return click.command(name, cls=Command, epilog=f"{metavar}: {about}")(made)

    return make


def _refuse_o(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    """-o was --option in 0.2, and is --output of the commands that write a file."""
    if value:
        raise click.UsageError(
            f"-o means --output, which this command does not have; for a key write --set {value[0]}"
        )


def _refuse_key_as_output(output: object) -> None:
    """A file called key=value is a key that was meant for --set."""
    if _KEY_OF_OUTPUT.match(str(output)):
        raise click.UsageError(f"-o is the file to write; for a key write --set {output}")


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """What a command line says about the data."""

    data: list[str]
    keys: dict[str, Any]  # given as KEY=VALUE
    given: dict[str, Any]  # given as options of their own
    part: str = "train"
    world_size: int = 1
    json: bool = False
    verbose: bool = False

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

        progress = screen.progress(as_json=self.json)
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
    from penstock.aliases import ALIASES
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

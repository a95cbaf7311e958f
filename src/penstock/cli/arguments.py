"""Which words do the commands share?  Parsed once, here, into the recipe and the loader that the library makes of them."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import screen

if TYPE_CHECKING:
    from penstock.api import OpenSet
    from penstock.loader import Loader
    from penstock.recipe import Recipe

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Data = Annotated[
    list[str],
    typer.Argument(
        metavar="RECIPE|DATA", help="A recipe (.yaml); or files, globs, folders, such as chat.jsonl@[:1000]."
    ),
]
Tokenizer = Annotated[str | None, typer.Option(help="A folder or file of a tokenizer, or a name on the hub.")]
Template = Annotated[str | None, typer.Option(help="How records become samples; auto looks at the data.")]
TrainOn = Annotated[str | None, typer.Option(help="What is trained, such as assistant or all.")]
ChatTemplate = Annotated[Path | None, typer.Option(help="A file with the chat template to render with.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="Any key of a recipe, such as eos=false; again for more."),
]
Name = Annotated[str | None, typer.Option(help="What to call this data.")]
CacheDir = Annotated[Path | None, typer.Option(help="The cache; else PENSTOCK_CACHE, else the platform's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value, for scripts.")]
NumProc = Annotated[int | None, typer.Option(min=1, help="Processes; else all cores.")]
Part = Annotated[str, typer.Option(help="Of a recipe: train, or the name of an eval set.")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Tokens per row.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Rows per rank.")]
WorldSize = Annotated[int, typer.Option(min=1, help="Ranks that share the data.")]
Source = Annotated[str | None, typer.Option(help="The data set, where there are several.")]


def place(data: list[str]) -> str | list[str]:
    """One place as such, several as a list."""
    return data[0] if len(data) == 1 else data


def recipe(data: list[str], words: list[str] | None = None, **given: Any) -> "Recipe":
    """The recipe that is named, or one of the data that is named; with everything that was said on the command line."""
    changes = {**options(words), **{name: value for name, value in given.items() if value is not None}}
    name = changes.pop("name", None)
    from penstock.recipe import Recipe
    from penstock.recipe.document import is_recipe

    if len(data) == 1 and is_recipe(data[0]):
        if name is not None:
            raise typer.BadParameter("--name is for data; a recipe names its own")
        found = Recipe.read(data[0])
        return found.changed(**changes) if changes else found
    return Recipe.of({"path": place(data), **({"name": name} if name is not None else {})}, **changes)


def loader(found: "Recipe", *, part: str = "train", world_size: int = 1, json: bool = False) -> "Loader":
    """Its loader, for questions: of rank 0, in numpy, and where no batch size is said of one row."""
    from penstock import api

    with screen.interruptible():
        return api.load(found, part=part, progress="none" if json else "auto", **_asked(found, part, world_size))


def prepared_loader(
    found: "Recipe", opened: "list[OpenSet]", *, part: str = "train", world_size: int = 1
) -> "Loader | None":
    """The same, where all stores are in the cache already; else None."""
    from penstock import api

    return api.load_prepared(found, opened, part=part, **_asked(found, part, world_size))


def _asked(found: "Recipe", part: str, world_size: int) -> dict[str, Any]:
    fallback = {} if "batch_size" in found.loader_options(part) else {"batch_size": 1}
    return {"rank": 0, "world_size": world_size, "output": "numpy", "pin_memory": False, **fallback}


def state(path: Path) -> dict[str, Any]:
    """A loader's saved state, from a JSON file; also where a trainer wrapped it in a dict of its own."""
    from penstock.errors import PlanError

    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: no saved state: {error}; expected JSON of loader.state_dict()") from error
    found = _inner(value)
    if found is None:
        raise PlanError(f"{path}: no saved state in it, expected JSON of loader.state_dict()")
    return found


def source_number(found: "Loader", name: str | None) -> int:
    names = [source.name for source in found.plan.sources]
    if name is None:
        return 0
    if name not in names:
        raise typer.BadParameter(f"source {name!r} is not there, expected one of {', '.join(names)}")
    return names.index(name)


def _inner(value: Any, depth: int = 0) -> dict[str, Any] | None:
    if not isinstance(value, dict) or depth > 4:
        return None
    if "plan" in value and "block" in value:
        return value
    return next((found for part in value.values() if (found := _inner(part, depth + 1))), None)


def options(words: list[str] | None) -> dict[str, Any]:
    """KEY=VALUE pairs: a value is JSON where it can be read as such, and else text."""
    made: dict[str, Any] = {}
    for option in words or []:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise typer.BadParameter(f"{option!r}: expected KEY=VALUE")
        try:
            made[key] = json.loads(value)
        except ValueError:
            made[key] = value
    return made


def template_text(path: Path | None) -> str | None:
    """What a chat template's file says."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error


def seconds(text: str) -> float:
    """A duration such as 12h or 30d."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise typer.BadParameter(f"{text!r}: expected a duration such as 90m, 12h, 30d or 4w")
    return float(parts[1]) * _SECONDS[parts[2]]

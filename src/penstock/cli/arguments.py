"""Arguments that several commands share, and the recipe and loader that are made of them."""

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
Tokenizer = Annotated[str | None, typer.Option(help="Folder or file of a tokenizer, or a name on the hub.")]
Template = Annotated[str | None, typer.Option(help="How records become samples; auto detects it.")]
TrainOn = Annotated[str | None, typer.Option(help="Which tokens are trained, such as assistant or all.")]
ChatTemplate = Annotated[Path | None, typer.Option(help="A file with the chat template to render with.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="Any key of a recipe, or option of the source, such as eos=false or record=file; again for more.",
    ),
]
Name = Annotated[str | None, typer.Option(help="A name for this data.")]
CacheDir = Annotated[Path | None, typer.Option(help="The cache; else PENSTOCK_CACHE, else the platform's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value, for scripts.")]
NumProc = Annotated[int | None, typer.Option(min=1, help="Number of processes; else all cores.")]
Part = Annotated[str, typer.Option(help="Of a recipe: train, or the name of an eval set.")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Tokens per row.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Rows per rank.")]
WorldSize = Annotated[int, typer.Option(min=1, help="Number of data-parallel ranks.")]
Source = Annotated[str | None, typer.Option(help="Name of the data set, where there are several.")]


def place(data: list[str]) -> str | list[str]:
    """One place as such, several as a list."""
    return data[0] if len(data) == 1 else data


def recipe(data: list[str], words: list[str] | None = None, **given: Any) -> "Recipe":
    """The recipe that is named, or one of the data that is named; with everything that was given on the command line."""
    changes = {**recipe_keys(words), **{name: value for name, value in given.items() if value is not None}}
    name = changes.pop("name", None)
    from penstock.recipe import Recipe
    from penstock.recipe.document import is_recipe

    if len(data) == 1 and is_recipe(data[0]):
        if name is not None:
            raise typer.BadParameter("--name is for data; a recipe names its own")
        found = Recipe.read(data[0])
        found = found.with_source_options(changes.pop("options", {}))
        return found.changed(**changes) if changes else found
    return Recipe.of({"path": place(data), **({"name": name} if name is not None else {})}, **changes)


def loader(found: "Recipe", *, part: str = "train", world_size: int = 1, json: bool = False) -> "Loader":
    """Its loader, to ask about: rank 0, numpy output, and a batch size of 1 where the recipe has none."""
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
        raise PlanError(
            f"{path}: cannot be read as a saved state: {error}; expected JSON of loader.state_dict()"
        ) from error
    found = _inner(value)
    if found is None:
        raise PlanError(f"{path}: there is no saved state in it, expected JSON of loader.state_dict()")
    return found


def source_number(found: "Loader", name: str | None) -> int:
    from penstock.report.numbers import names as names_of

    names = names_of(found)
    if name is None:
        return 0
    if name not in names:
        raise typer.BadParameter(f"there is no data set {name!r}, expected one of {', '.join(names)}")
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


def recipe_keys(words: list[str] | None) -> dict[str, Any]:
    """KEY=VALUE pairs as keys of a recipe; an option of a source, such as record, goes under `options`."""
    given = options(words)
    if not given:
        return {}
    from penstock.recipe.keys import is_key, source_options

    own = {name: given.pop(name) for name in list(given) if not is_key(name) and name in source_options()}
    return {**given, "options": {**given.get("options", {}), **own}} if own else given


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

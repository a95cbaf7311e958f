"""Which words do the commands share?  Parsed once, here, into what the library takes."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Data = Annotated[list[str], typer.Argument(help="Files, globs, folders; rows may be chosen: chat.jsonl@[:1000].")]
Tokenizer = Annotated[str | None, typer.Option(help="A folder or file of a tokenizer, or a name on the hub.")]
Template = Annotated[str, typer.Option(help="How records become samples; auto looks at the data.")]
TrainOn = Annotated[str | None, typer.Option(help="What is trained, such as assistant or all.")]
ChatTemplate = Annotated[Path | None, typer.Option(help="A file with the chat template to render with.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the template; again for more."),
]
Name = Annotated[str | None, typer.Option(help="What to call this data.")]
CacheDir = Annotated[Path | None, typer.Option(help="The cache; else PENSTOCK_CACHE, else the platform's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value, for scripts.")]


def place(data: list[str]) -> str | list[str]:
    """One place as such, several as a list."""
    return data[0] if len(data) == 1 else data


def template_options(
    options: list[str] | None, *, train_on: str | None = None, chat_template: Path | None = None
) -> dict[str, Any]:
    """KEY=VALUE pairs: a value is JSON where it can be read as such, and else text."""
    made: dict[str, Any] = {}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise typer.BadParameter(f"{option!r}: expected KEY=VALUE")
        try:
            made[key] = json.loads(value)
        except ValueError:
            made[key] = value
    if train_on is not None:
        made["train_on"] = train_on
    if chat_template is not None:
        try:
            made["chat_template"] = chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{chat_template}: {error}") from error
    return made


def seconds(text: str) -> float:
    """A duration such as 12h or 30d."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise typer.BadParameter(f"{text!r}: expected a duration such as 90m, 12h, 30d or 4w")
    return float(parts[1]) * _SECONDS[parts[2]]

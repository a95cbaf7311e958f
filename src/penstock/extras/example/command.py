"""`penstock example`: write a folder to try things on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

import click
from click import option

from penstock.cli import screen
from penstock.cli.answers import answers, of, record
from penstock.cli.request import Command, talks
from penstock.errors import RecipeError

_RECIPE = "recipe.yaml"
_TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleFolder:
    """One kind of example: its files, its recipe, and what to do with them next."""

    files: dict[str, Callable[[], Sequence[dict[str, Any]]]]
    recipe: str
    next_command: str


def _examples() -> dict[str, ExampleFolder]:
    from penstock.extras.example import records

    return {
        "chat": ExampleFolder(
            files={"chat.jsonl": records.chats, "held_out.jsonl": records.held_out_chats},
            recipe=(
                "data: chat.jsonl\n"
                "eval: held_out.jsonl\n"
                "tokenizer: tokenizer\n"
                "template: messages\n"
                "max_length: 256\n"
                "batch_size: 4\n"
            ),
            next_command="penstock show {folder}/recipe.yaml",
        ),
        "text": ExampleFolder(
            files={"web.jsonl": records.texts},
            recipe=(
                "data: web.jsonl\n"
                "tokenizer: tokenizer\n"
                "template: text\n"
                "packing: concat\n"
                "max_length: 256\n"
                "batch_size: 4\n"
            ),
            next_command="penstock plan {folder}/recipe.yaml",
        ),
        "prompts": ExampleFolder(
            files={"questions.jsonl": records.prompts},
            recipe=(
                "data: questions.jsonl\ntokenizer: tokenizer\ntemplate: prompt\nmax_length: 64\n"
            ),
            next_command="python -c \"import penstock; print(penstock.Prompts('{folder}/recipe.yaml'))\"",
        ),
    }


@answers(
    lambda: record(
        folder=str, records={"type": "object", "additionalProperties": of(int)}, recipe=str
    )
)
@click.command("example", cls=Command)
@click.argument("kind", type=click.Choice(["chat", "text", "prompts"]))
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@option("--json", is_flag=True, help="Print one JSON value, for scripts.")
@talks
def example(kind: str, folder: Path | None, json: bool) -> None:
    """Write a folder to try things on: a few hundred records, a tokenizer and a recipe.

    The records are about made-up towns and are the same on every machine.  Nothing is downloaded.  FOLDER is example-KIND unless you name
    another one; it must be empty or new.
    """
    folder = folder or Path(f"example-{kind}")
    _require_empty(folder, kind)
    chosen = _examples()[kind]
    try:
        sizes = _write(folder, chosen)
    except OSError as error:
        raise RecipeError(f"{folder}: cannot be written: {error.strerror or error}") from error
    recipe = folder / _RECIPE
    if json:
        screen.as_json({"folder": str(folder), "records": sizes, "recipe": str(recipe)})
        return
    for path, size in sizes.items():
        screen.say(f"wrote {path}: {size:,} records")
    screen.say(f"wrote {folder / _TOKENIZER} and {recipe}")
    screen.say(f"next: {chosen.next_command.format(folder=folder)}")


def _write(folder: Path, chosen: ExampleFolder) -> dict[str, int]:
    """Write data, tokenizer and recipe; return the number of records of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for name, make_records in chosen.files.items():
        lines = [dumps(record) + "\n" for record in make_records()]
        (folder / name).write_text("".join(lines))
        sizes[str(folder / name)] = len(lines)
    _write_tokenizer(folder / _TOKENIZER)
    (folder / _RECIPE).write_text(chosen.recipe)
    return sizes


def _require_empty(folder: Path, kind: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(
            f"{folder} is not an empty folder; name another one, such as: penstock example {kind} {folder}-2"
        )


def _write_tokenizer(folder: Path) -> None:
    """Train the tokenizer on the records of all examples, so that each example has the same one."""
    from penstock.extras.example import records
    from penstock.extras.example.tokenizer import write_tokenizer

    contents = [message["content"] for record in records.chats() for message in record["messages"]]
    roles = ["system", "user", "assistant"] * 20
    write_tokenizer(
        folder, [*contents, *roles, *(document["text"] for document in records.texts())]
    )

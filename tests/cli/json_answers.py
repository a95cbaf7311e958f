"""Validate what a command printed with `--json` against the schema that `penstock schema COMMAND` prints."""

import json
from typing import Any

import click
from jsonschema import Draft202012Validator

from penstock.cli.answers import schema_of
from penstock.cli.main import cli


def every_command() -> dict[str, click.Command]:
    """Every command by its name, such as "cache ls"; of a group only those in it."""
    found: dict[str, click.Command] = {}
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= {f"{name} {own}": each for own, each in command.commands.items()}
        else:
            found[name] = command
    return found


def validated(name: str, output: str) -> Any:
    """Return the one JSON value that a command printed, if it is what its schema says."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    value = json.loads(output, parse_constant=refuse)
    Draft202012Validator(schema_of(every_command()[name], name)).validate(value)
    return value


def name_of(arguments: list[str]) -> str:
    """Return the command that these arguments begin with."""
    return " ".join(arguments[: 2 if arguments[0] == "cache" else 1])

"""The reference pages match the code.  As a script this module writes them; as a test it fails when they are stale."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.aliases import ALIASES
from penstock.cli import main
from penstock.recipe.keys import REQUIRED, Key, keys, template_options

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
REMARK = (
    "<!-- Written by `python -m tests.house.test_reference`; a test fails when it is stale. -->"
)

ROOMS = {
    "open": ("Reading a dataset", "In one dataset, or at the top for all of them."),
    "template": (
        "Making samples",
        "In one dataset, or at the top for all that have such an option. Options of `chat` and `messages` belong to every template "
        "of conversations: messages, sharegpt, alpaca, and two-sided rows with `chat: true`.",
    ),
    "prepare": ("Preparing", "At the top only. None of them changes a token."),
    "loader": ("Rows, order and batches", "At the top; an eval set may have its own values."),
    "process": (
        "Options of the process",
        "Passed to `penstock.load`, never written in a file, because they differ between ranks.",
    ),
}


def cli_page() -> str:
    ends = [
        words.split(maxsplit=1) for words in str(main.__doc__).splitlines() if words[:1].isdigit()
    ]
    parts = [
        REMARK,
        "# The command",
        "",
        "`penstock` and `python -m penstock` are the same. Commands about data take a recipe, or data with `--tokenizer`. All "
        "print plain text in a pipe. Nothing in your data can steer the terminal.",
        "",
        "`--json` prints one JSON value. `penstock schema COMMAND` prints its JSON schema, such as `penstock schema check` or `penstock "
        "schema cache ls`; [a test](../../tests/cli/test_json_answers.py) validates real output of every command. Where the data or "
        'settings are wrong, the value is `{"error": {"code": …, "message": …}}`. A number that is not finite is `null`.',
        "",
        "All commands have `-h`, `-q` (`--quiet`) and `-v` (`--verbose`). `-o` is always the file that is written; `-s` (`--set`) sets a "
        "key of the recipe. Work that takes longer than three seconds shows its progress within the first second, on stderr: one line "
        "on a terminal, a line every ten seconds in a file.",
        "",
        "To complete commands, options and file names with Tab, add a line to the file that your shell reads at its start:",
        "",
        "| shell | file | line |",
        "|---|---|---|",
        '| bash | `.bashrc` | `eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"` |',
        '| zsh | `.zshrc` | `eval "$(_PENSTOCK_COMPLETE=zsh_source penstock)"` |',
        "| fish | `completions/penstock.fish` in the folder of fish | `_PENSTOCK_COMPLETE=fish_source penstock \\| source` |",
        "",
        "| exit code | when |",
        "|---|---|",
        *(f"| {code} | {when} |" for code, when in ends),
        "",
    ]
    names = [[name] for name in main.cli.list_commands(main.cli.make_context("penstock", []))]
    names += [["cache", name] for name in main.of_cache.commands]
    every_name = [[], *names]
    for name, shown in zip(every_name, help_of(every_name), strict=True):
        parts += [f"## `{' '.join(['penstock', *name])}`", "", "```text", shown, "```", ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def help_of(names: list[list[str]]) -> list[str]:
    """What `--help` prints for each of these commands, in a process whose terminal is plain and 100 columns wide."""
    code = (
        "import json, sys\n"
        "from penstock.cli.main import cli\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    cli([*name, '--help'], prog_name='penstock', standalone_mode=False)\n"
        "    print('\\0')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, json.dumps(names)],
        env={**os.environ, "COLUMNS": "100", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    *pages, _ = result.stdout.split("\0\n")
    return ["\n".join(words.rstrip() for words in page.splitlines()).strip("\n") for page in pages]


def recipe_page() -> str:
    parts = [
        REMARK,
        "# Keys of a recipe",
        "",
        "They are the keyword arguments of `penstock.open`, `penstock.prepare` and `penstock.Loader`, with the types and defaults "
        "that those have. [The guide](../guides/recipe.md) shows them at work.",
        "",
        "## Data",
        "",
        "| key | takes | meaning |",
        "|---|---|---|",
        "| `data` | a place, a list of places, or datasets by name | what is trained |",
        "| `eval` | the same | sets to evaluate on, each loaded by its name |",
        "| `path` | a place, or a list of places | of a dataset: files, globs, folders, `chat.jsonl@[:1000]` |",
        "| `weight` | a number above 0 | of a dataset: its share of the mixture; for all of them or for none |",
        "| `name` | text | of a dataset in a list |",
        "",
    ]
    for room, (title, remark) in ROOMS.items():
        parts += [f"## {title}", "", remark, ""]
        found = [key for key in keys().values() if key.room == room]
        of_templates = room == "template"
        parts += ["| key | takes | default | meaning |", "|---|---|---|---|"]
        parts += [row(key, of_templates=of_templates) for key in found]
        parts.append("")
    parts += [
        "## Names of other tools",
        "",
        "Accepted, with a notice in the log.",
        "",
        "| theirs | ours |",
        "|---|---|",
    ]
    parts += [
        f"| `{name}` | {', '.join(f'`{key}`' for key in alias.keys)} |"
        for name, alias in sorted(ALIASES.items())
        if name not in FORMER
    ]
    return "\n".join(parts) + "\n"


def row(key: Key, *, of_templates: bool) -> str:
    takes = " or ".join(sorted(kind for kind in key.accepts))
    options = template_options().get(key.name, {})
    default = shown(key.default)
    if of_templates and options and key.default is REQUIRED:
        default = ", ".join(f"{shown(each.default)} ({name})" for name, each in options.items())
    of = f" (of {', '.join(options)})" if of_templates and options else ""
    return f"| `{key.name}` | {takes} | {default} | {key.doc}{of} |"


def shown(default: Any) -> str:
    if default is REQUIRED:
        return "must be given"
    return (
        f"`{default}`"
        if isinstance(default, str) and default.isprintable()
        else f"`{json.dumps(default)}`"
    )


FORMER = {key.setting.former for key in keys().values()} | {"place"}  # of 0.2
PAGES = {"cli.md": cli_page, "recipe.md": recipe_page}


def test_every_key_is_documented() -> None:
    assert [key.name for key in keys().values() if not key.doc] == []


def test_the_options_of_commands_are_documented_by_the_keys() -> None:
    """No command retypes what a key means: its help is that of the key."""
    page = " ".join(
        (FOLDER / "cli.md").read_text(encoding="utf-8").split()
    )  # a fresh one: the next test
    for name in (
        "tokenizer",
        "template",
        "train_on",
        "num_proc",
        "engine",
        "max_length",
        "batch_size",
        "cache_dir",
    ):
        doc = keys()[name].doc
        assert f"--{name.replace('_', '-')}" in page and f"{doc[0].upper()}{doc[1:]}." in page, name


def test_reference_pages_are_fresh() -> None:
    stale = [
        name
        for name, make in PAGES.items()
        if (FOLDER / name).read_text(encoding="utf-8") != make()
    ]
    assert stale == [], "run: python -m tests.house.test_reference"


def test_every_key_is_on_its_page() -> None:
    page = recipe_page()
    assert [name for name in (*keys(), *ALIASES.keys() - FORMER) if f"`{name}`" not in page] == []


if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")

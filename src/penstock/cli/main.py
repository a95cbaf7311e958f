"""The `penstock` command.  Exit codes:

0    ok
1    problems were found: check, verify, plan (no step, too much dropped, or a state of --compare that does not fit), bench (too slow)
2    the command line is wrong
3    the data, the settings or the cache are wrong: one line says what, where, and what to do
70   an error of Penstock itself: a traceback says where
130  interrupted; what is finished is kept
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from penstock import __version__, plugins
from penstock.cli import commands, recipes, screen, stores
from penstock.errors import PenstockError

OK = 0
PROBLEMS = 1
USAGE = 2
DATA = 3
FAULT = 70
INTERRUPTED = 130
_COMPLETE = "_PENSTOCK_COMPLETE"  # set by a shell that asks for completions
FIRST_HOUR = """\
Penstock turns raw records into packed training batches.  The first hour:

  penstock init DATA --tokenizer TOKENIZER   write recipe.yaml for files or a folder
  penstock check recipe.yaml                 find problems in the recipe and its data
  penstock show recipe.yaml --record 0       see one record, its tokens and what is trained
  penstock prepare recipe.yaml               tokenize everything once, on all cores
  penstock plan recipe.yaml                  see steps, rows and shares of an epoch

Then train in Python: loader = penstock.load("recipe.yaml").  All commands: penstock --help"""
_PASS_REFRESH = re.compile(r"\bpass refresh=True\b")  # only `prepare` has the option
_REFRESH = re.compile(r"\brefresh=True\b")
_ADVICE = re.compile(
    r"\b(?P<verb>pass|set|write|choose|give|with|or) (?P<name>[a-z_]+)="
    r"(?:(?P<quote>[\"'])(?P<text>[\w./-]+)(?P=quote)|(?P<plain>\d+|True|False)\b|(?=[\s,;:)]|$))"
)
_OPTIONS = {"tokenizer", "refresh"}  # settings that are options of commands
_SET_TO = re.compile(r"\bset (?P<name>[a-z_]+) to '(?P<value>[\w-]+)'")
_FORMER_NAMES = {"resume": "state"}  # of 0.2
_KEPT = "what is finished is kept: run the same command again to continue"


class Group(click.Group):
    """Commands in the order in which they are added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class Commands(Group):
    """The commands of the core, and after them those that are plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *plugins.names("commands")]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        missing = plugins.not_installed("commands", args[0])
        if missing:
            ctx.fail(f"No such command {args[0]!r}{missing}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _FORMER_NAMES:
            screen.note(
                f"penstock {name} is now called penstock {_FORMER_NAMES[name]}; the old name still works"
            )
            name = _FORMER_NAMES[name]
        if name in self.commands or name not in plugins.names("commands"):
            return super().get_command(ctx, name)
        command: click.Command = plugins.load("commands", name)
        return command


def _first_hour() -> None:
    if click.get_current_context().invoked_subcommand is None:
        for line in FIRST_HOUR.splitlines():
            screen.say(line)


cli = Commands(
    "penstock",
    invoke_without_command=True,
    callback=_first_hour,
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
    help="Turn raw records into packed training batches.",
    epilog="Exit codes: 0 ok, 1 problems found, 2 wrong command line, 3 wrong data or settings, 70 an error of Penstock, 130 interrupted.",
)
_add_version = click.version_option(
    __version__, message="penstock %(version)s", help="Print the version."
)
_add_version(cli)
of_cache = Group(
    "cache", no_args_is_help=True, help="List, remove and explain what is in the cache."
)
for _command in (stores.ls, stores.rm, stores.prune, stores.why):
    of_cache.add_command(_command)
for _command in (
    recipes.init,
    recipes.schema,
    commands.check,
    commands.prepare,
    commands.show,
    commands.stats,
    commands.plan,
    commands.trace,
    commands.state_,
    commands.bench,
    stores.verify,
    of_cache,
):
    cli.add_command(_command)


def app(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.  Only an error of our own shows a traceback."""
    code = OK
    words = list(sys.argv[1:] if arguments is None else arguments)
    screen.open_closed_streams()
    try:
        if instruction := os.environ.get(_COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(cli, {}, "penstock", _COMPLETE, instruction)
        try:
            with cli.make_context("penstock", list(words)) as context:
                cli.invoke(context)
        except click.exceptions.Exit as end:
            code = end.exit_code
        with screen.explaining_output():
            sys.stdout.flush()
    except screen.OutputLost as error:
        screen.complain(error)
        screen.discard_output()
        code = DATA
    except PenstockError as error:
        message = in_command_words(str(error))
        screen.complain(f"{message} [error: {error.code}]")
        if "--json" in words:
            screen.as_json({"error": {"code": error.code, "message": message}})
        code = DATA
    except KeyboardInterrupt as stop:
        screen.complain(f"interrupted; {str(stop) or _KEPT}")
        code = INTERRUPTED
    except (
        BrokenPipeError
    ):  # the reader of the output closed the pipe: discard the rest, also when the process ends
        screen.discard_output()
    except click.ClickException as error:
        _explain(error)
        code = USAGE
    except Exception as error:
        import traceback

        screen.text_block("".join(traceback.format_exception(error)))
        screen.complain(
            "this is an error of Penstock itself; please report it with the lines above"
        )
        code = FAULT
    return code


def in_command_words(message: str) -> str:
    """Return advice as a command line has it: on_bad="skip" is --set on_bad=skip, and refresh=True is --refresh."""
    from penstock.recipe.keys import keys

    def in_a_command(advice: re.Match[str]) -> str:
        name = advice["name"]
        value = advice["text"] or (advice["plain"] or "…").lower()
        if name in _OPTIONS:
            return f"{advice['verb']} --{name} {value}"
        if name in keys():
            return f"{advice['verb']} --set {name}={value}"
        return advice[0]

    message = _PASS_REFRESH.sub("run penstock prepare --refresh", message)
    message = _REFRESH.sub("--refresh", message)
    message = _SET_TO.sub(r"pass --set \g<name>=\g<value>", message)
    return _ADVICE.sub(in_a_command, message)


def _explain(error: click.ClickException) -> None:
    """Say what is wrong with the command line."""
    message = error.format_message()
    if "\n" in message:  # help, because no command was given
        screen.text_block(message)
        return
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    screen.complain(f"{message} (see {' '.join(['penstock', *names])} --help)")

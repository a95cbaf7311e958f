"""The `penstock` command.  Exit codes:

0    ok
1    problems were found: verify, check, plan --compare, bench --model-tokens-per-second
2    the command line is wrong
3    the data, the settings or the cache are wrong: one line says what, where, and what to do
70   an error of Penstock itself: a traceback says where
130  interrupted; what is finished is kept
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from penstock import __version__
from penstock.cli import bench, cache, check, init, plan, prepare, report, screen, show, stats, trace, verify
from penstock.errors import PenstockError

OK, PROBLEMS, USAGE, DATA, FAULT, INTERRUPTED = 0, 1, 2, 3, 70, screen.INTERRUPTED

commands = typer.Typer(
    name="penstock",
    help="Turn raw records into packed training batches.",
    epilog="Exit codes: 0 ok, 1 problems found, 2 wrong command line, 3 wrong data or settings, 130 interrupted.",
    rich_markup_mode=None,  # plain help, also in a pipe
    pretty_exceptions_enable=False,  # they would print what data says, raw
    no_args_is_help=True,
)
commands.command("init")(init.init)
commands.command("check")(check.check)
commands.command("prepare")(prepare.prepare)
commands.command("show")(show.show)
commands.command("stats")(stats.stats)
commands.command("plan")(plan.plan)
commands.command("trace")(trace.trace)
commands.command("report")(report.report)
commands.command("bench")(bench.bench)
commands.command("verify")(verify.verify)
commands.add_typer(cache.commands, name="cache")


def _version(asked: bool) -> None:
    if asked:
        screen.say(f"penstock {__version__}")
        raise typer.Exit


@commands.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def app(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code.  No error leaves here as a traceback but our own."""
    try:
        code = commands(arguments, standalone_mode=False)
        sys.stdout.flush()
    except PenstockError as error:
        screen.complain(error)
        return DATA
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except SystemExit as end:  # typer's answer to the same, and to a shell that asks for completions
        return _unread() if isinstance(end.__context__, BrokenPipeError) else int(end.code or OK)
    except Exception as error:
        return _explain(error)
    finally:
        screen.listen_no_more()
    if code == INTERRUPTED:
        screen.complain("interrupted; what is finished is kept: run the same command again to go on")
    return code if isinstance(code, int) else OK


def _unread() -> int:
    """Whoever read our output has had enough; what is left of it goes nowhere, also when the process ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return OK


def _explain(error: Exception) -> int:
    """An error of usage, which typer's own library tells apart by how it can be shown, or a fault of ours."""
    shown = getattr(error, "format_message", None)
    if callable(shown):
        message = str(shown())
        if "\n" in message:  # help, where no command was given
            screen.text_block(message)
        else:
            screen.complain(f"{message} (see {_asked(error)} --help)")
        return USAGE
    import traceback

    screen.text_block("".join(traceback.format_exception(error)))
    screen.complain("this is an error of Penstock itself; please report it with the lines above")
    return FAULT


def _asked(error: Exception) -> str:
    """The command that was not understood, however the program was called."""
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return " ".join(["penstock", *names])

"""Runs the blocks of one page in order, in the folder it is started in: python -m tests.docs.run_page PAGE.

A process of its own, so that a page meets what its readers meet, and no page meets what another left behind.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, blocks, commands, is_as_shown, name
from tests.docs.world import GIVEN


def run(page: Path) -> None:
    names: dict[str, Any] = vars(sys.modules["__main__"])
    names["__file__"] = page.as_posix()
    exec(GIVEN.get(name(page), ""), names)
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.runs and block.language == "python":
            lines = (
                "\n" * (block.line - 1) + block.text
            )  # so that a traceback names the line of the page
            exec(compile(lines, block.where.rpartition(":")[0], "exec"), names)
        elif block.runs:
            for command, shown in commands(block):
                run_command(block, command, shown)


def run_command(block: Block, command: str, shown: list[str]) -> None:
    sys.stdout.flush()
    command = command.replace(
        "penstock bench ", "penstock bench --seconds 0.2 "
    )  # a page need not wait for a good number
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    said = f"{block.where}: {command}\n{done.stdout}{done.stderr}"
    ends_with = (
        int(shown.pop().removeprefix("(ends with ").rstrip(")"))
        if shown and "(ends with" in shown[-1]
        else 0
    )
    if done.returncode != ends_with:
        sys.exit(f"{said}(ended with {done.returncode}, the page says {ends_with})")
    if not is_as_shown(shown, done.stdout if not ends_with else done.stdout + done.stderr):
        sys.exit(f"{said}\nis not what the page shows:\n" + "\n".join(shown))


if __name__ == "__main__":
    run(Path(sys.argv[1]))

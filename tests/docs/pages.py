"""What stands on a page?  Its code blocks and tables, with the lines they start in.

How pages mark their blocks, visibly:

    python                  runs, all blocks of a page in order, with the names of those before
    bash                    every command runs
    console                 lines after `$ ` run, and what is shown below them is what they print; `…` stands for anything
    yaml, `# name.yaml`     a first line with a file's name: the block is that file
    python, `# name.py`     the same
    `# not run here: why`   a first line that says why a block does not run
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"# not run here: (\S.*)\n")
_FILE = {
    "yaml": re.compile(r"# ([\w/-]+\.ya?ml)\n"),
    "python": re.compile(r"# ([\w/-]+\.py)\n"),
}
_CELL = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block.  Its first line of text is `line` of its page."""

    page: Path
    language: str
    text: str
    line: int

    @property
    def why_not_run(self) -> str | None:
        found = _NOT_RUN.match(self.text)
        return found[1] if found else None

    @property
    def file(self) -> str | None:
        """The file that this block is."""
        pattern = _FILE.get(self.language)
        named = pattern.match(self.text) if pattern else None
        return named[1] if named else None

    @property
    def where(self) -> str:
        return f"{name(self.page)}:{self.line}"

    @property
    def runs(self) -> bool:
        is_code = self.language in ("python", "bash", "console")
        return is_code and self.file is None and self.why_not_run is None


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, found[1].strip(), found[2], text.count("\n", 0, found.start()) + 2)
        for found in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def code(text: str) -> list[str]:
    """What stands between single backticks."""
    return _CODE.findall(text)


def tables(page: Path) -> list[tuple[str, list[list[str]]]]:
    """(heading, rows of cells without the two lines of the head) of every table."""
    made: list[tuple[str, list[list[str]]]] = []
    heading, is_table = "", False
    for line in prose(page).splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            is_table = False
            continue
        if not is_table:
            is_table = True
            made.append((heading, []))
        made[-1][1].append([cell.strip() for cell in _CELL.split(line)[1:-1]])
    return [(heading, rows[2:]) for heading, rows in made]


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """(command, the lines shown below it) of a bash or console block; lines that end with a backslash go on."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console" and not line.startswith("$ "):
            assert found, (
                f"{block.where}: a console block begins with a command, as in `$ penstock …`"
            )
            found[-1][1].append(line)
        elif (command := line.removeprefix("$ ")).strip() and not command.startswith("#"):
            found.append((command, []))
    return found


def is_as_shown(shown: list[str], printed: str) -> bool:
    """Whether a command printed what a page shows; widths of columns and `…` aside."""
    wanted = [" ".join(line.split()) for line in shown if line.strip()]
    given = "\n".join(" ".join(line.split()) for line in printed.splitlines() if line.strip())
    parts = [
        ".*?" if line == "…" else "[^\n]*?".join(map(re.escape, line.split("…"))) for line in wanted
    ]
    pattern = "\n".join(parts).replace("\n.*?\n", "\n(?:.*\n)??").replace("\n.*?", "(?:\n.*)?")
    return not wanted or re.fullmatch(pattern, given, flags=re.DOTALL) is not None

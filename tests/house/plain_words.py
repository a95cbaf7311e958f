"""Words that the field writes in another way, and what it writes: the code, its messages and the pages use the second.

    python -m tests.house.plain_words        replace them everywhere; test_plain_words.py fails where one is left

In code only comments and texts are read, without what stands in the braces of an f-string: names stay as they are.
"""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# `after` keeps the case of the first letter.
PLAIN = {
    r"data set(s?)": r"dataset\1",
    r"white space": "whitespace",
    r"look-up": "lookup",
    r"time-out": "timeout",
    r"for ever": "forever",
    r"anew": "again",
    r"likewise": "in the same way",
    r"comes again": "is repeated",
    r"stands twice": "appears twice",
    r"beside(?= *[.,;:)\"])": "next to it",
    r"beside": "next to",
    r"dealt": "assigned",
    r"deals": "assigns",
    r"dealing": "assigning",
}
_FORBIDDEN = re.compile(rf"(?<![\w`-])({'|'.join(PLAIN)})(?![\w`-])", re.IGNORECASE | re.MULTILINE)
# Whole sentences of others, and what was released or measured as it was worded then.
_SKIPPED = ("docs/history.md", "CHANGELOG.md", "benchmarks/", "tests/house/plain_words.py")
_KINDS = (".py", ".md", ".js", ".toml", ".yml", ".yaml", ".txt", ".html")
_WORDS = re.compile(r"\{\{|\}\}|\{[^{}]*\}")


def files() -> Iterator[Path]:
    """Every text of the repository that these words are kept out of."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if name.endswith(_KINDS) and not name.startswith(_SKIPPED) and (ROOT / name).is_file():
            yield ROOT / name


def replaced(text: str) -> str:
    """Return a text in plain words."""

    def one(found: re.Match[str]) -> str:
        for word, plain in PLAIN.items():
            inner = re.fullmatch(word.split("(?=")[0], found[0], re.IGNORECASE)
            rest = found.string[found.end() :]
            if inner and ("(?=" not in word or re.match(r" *[.,;:)\"]", rest)):
                new = inner.expand(plain)
                return new[0].upper() + new[1:] if found[0][0].isupper() else new
        return found[0]

    return _FORBIDDEN.sub(one, text)


def replaced_in_code(text: str) -> str:
    """Return Python code whose comments and texts are in plain words."""
    lines = text.splitlines(keepends=True)
    pieces: list[tuple[int, int, int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            pieces.append((*token.start, *token.end))
    for first, start, last, end in reversed(pieces):
        whole = "".join(lines[first - 1 : last])
        tail = len(lines[last - 1]) - end
        inside = whole[start : len(whole) - tail]
        if re.fullmatch(r"[rbf]*[\"']\w+[\"']", inside):  # a name
            continue
        if re.match(r"[rb]*f", inside):
            kept = _WORDS.findall(inside)
            texts = [replaced(each) for each in _WORDS.split(inside)]
            inside = texts[0] + "".join(a + b for a, b in zip(kept, texts[1:], strict=True))
        else:
            inside = replaced(inside)
        merged = whole[:start] + inside + whole[len(whole) - tail :]
        lines[first - 1 : last] = merged.splitlines(keepends=True)
    return "".join(lines)


def in_plain_words(path: Path) -> str:
    """Return what a file should be."""
    text = path.read_text(encoding="utf-8")
    return replaced_in_code(text) if path.suffix == ".py" else replaced(text)


if __name__ == "__main__":
    for path in files():
        new = in_plain_words(path)
        if new != path.read_text(encoding="utf-8"):
            path.write_text(new, encoding="utf-8")

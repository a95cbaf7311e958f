"""Do the pages hold what they say?  Links lead somewhere, no page knows one particular machine; tests/docs runs the examples."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)

FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MACHINE = re.compile(
    r"(?<![\w./])(?:/(?:work|home|root|tmp|Users|opt|mnt|srv|scratch|data)/|~/|[A-Z]:\\)|localhost|127\.0\.0\.1"
)


def broken_links(page: Path) -> list[str]:
    """Relative links whose file, or whose heading in that file, is not there."""
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def anchors(page: Path) -> set[str]:
    """Names that a page's headings get where Markdown is shown: lower case, no punctuation, dashes for spaces."""
    headings = re.findall(
        r"^#+ +(.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_knows_one_machine(page: Path) -> None:
    assert MACHINE.findall(page.read_text(encoding="utf-8")) == []


def test_a_broken_link_and_a_machine_path_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One, two\n[a](gone.md) [b](#one-two) [c](#three) [d](page.md) [e](https://x.org)\n```\n[f](g)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "#three"]
    for path in (
        "see /home/me/x",
        "`/work/main`",
        "in ~/.cache/x",
        "C:\\data",
        "http://localhost:80",
    ):
        assert MACHINE.search(path), path
    for path in ("data/work/x", "tests/house", "and/or", "./data/x", "s3://home/x"):
        assert not MACHINE.search(path), path


def test_every_promise_of_the_readme_names_its_test() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Promises")[2]
    rows = re.findall(r"^\| (?!promise|---).*\|$", text, flags=re.MULTILINE)
    assert rows
    assert [row for row in rows if not re.search(r"\]\(tests/[\w/]+\.py\)", row)] == []

"""Do the pages speak of what is there?  Commands, options, keys of a recipe, names of other tools, messages."""

import ast
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

import penstock as ps
from penstock import errors
from penstock.aliases import ALIASES
from penstock.cli.main import cli
from penstock.errors import PenstockError, PlanError, TemplateError
from penstock.plan.settings import PlanSettings
from penstock.recipe.keys import keys

from . import errors_page
from .pages import PAGES, ROOT, blocks, code, name, prose, tables

GUIDES = ROOT / "docs" / "guides"
COMING_FROM = GUIDES / "coming-from.md"
OTHERS = [COMING_FROM, *sorted(GUIDES.glob("from-*.md"))]
DEFAULTS = "Defaults"  # begins the heading of a table of what, theirs, ours
TROUBLE = ROOT / "docs" / "troubleshooting.md"

TOP = {
    "data",
    "eval",
    "weight",
    "path",
    "name",
}  # keys of a recipe that are no keyword of a function


def spoken(page: Path) -> Iterator[str]:
    """Every `penstock …` on a page: lines of its blocks, and what stands in backticks."""
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines():
            if (line := line.strip().removeprefix("$ ")).startswith("penstock "):
                yield line
    yield from (text for text in code(prose(page)) if text.startswith("penstock "))


def unknown(line: str) -> str | None:
    """The first word of a command line that the command does not know."""
    here: click.Command = cli
    for word in shlex.split(line, comments=True)[1:]:
        found = (
            here.get_command(click.Context(here), word) if isinstance(here, click.Group) else None
        )
        if found is not None:
            here = found
        elif (
            isinstance(here, click.Group)
            and not word.startswith("-")
            and not re.search(r"[|…]", word)
        ):
            return word
        elif word.startswith("--") and word not in {
            option for each in here.params for option in (*each.opts, *each.secondary_opts)
        }:
            return word if word != "--help" else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_that_a_page_speaks_of_is_there(page: Path) -> None:
    assert [(line, word) for line in spoken(page) if (word := unknown(line))] == []


def test_an_unknown_command_or_option_is_noticed() -> None:
    assert unknown("penstock prepare x.yaml --refresh  # a remark") is None
    assert unknown("penstock cache prune --older-than 30d") is None
    assert unknown("penstock prepair x.yaml") == "prepair"
    assert unknown("penstock plan x.yaml --ranks 8") == "--ranks"


def settings(text: str) -> Iterator[tuple[str, str]]:
    """(key, value) of what stands in backticks as a recipe would have it."""
    for span in code(text):
        if found := re.fullmatch(r"([a-z_]+):(?: (.+))?", span):
            yield found[1], found[2] or ""


def fault(key: str, value: str) -> str | None:
    """Why a recipe would not take it."""
    if key in TOP or "…" in value:
        return None
    if key not in keys():
        return f"{key} is no key of a recipe"
    if not value or keys()[key].room == "process":
        return None
    with_weights = {"a": {"path": "a.jsonl", "weight": 1}}
    try:
        needed = {"background": {"shuffle_window": 16}, "overlap": {"packing": "concat"}}
        beside = needed.get(key, {})  # which it is refused without
        ps.Recipe.of(with_weights, **{"tokenizer": "t", **beside, key: yaml.safe_load(value)})
    except PenstockError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "page", [*sorted(GUIDES.glob("*.md")), ROOT / "docs/troubleshooting.md"], ids=name
)
def test_every_key_that_a_guide_speaks_of_is_one(page: Path) -> None:
    text = prose(page)
    if page in OTHERS:  # what is theirs is in the first columns
        text = "\n".join(
            row[2 if head.startswith(DEFAULTS) else 1]
            for head, rows in tables(page)
            for row in rows
        )
    faults = [
        f"{key}: {value}: {why}" for key, value in settings(text) if (why := fault(key, value))
    ]
    assert faults == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == GUIDES], ids=name)
def test_every_name_of_ours_that_a_guide_speaks_of_is_there(page: Path) -> None:
    names = {found for text in code(prose(page)) for found in re.findall(r"\bps\.(\w+)", text)}
    assert names <= set(ps.__all__)
    members = {
        found for text in code(prose(page)) for found in re.findall(r"\bsource\.(\w+)", text)
    }
    source = ps.open([{"a": 1}])
    assert {member for member in members if not hasattr(source, member)} == set()


def test_what_may_change_on_resume_is_what_is_no_part_of_the_plan() -> None:
    ((_, rows),) = [
        table for table in tables(GUIDES / "resume.md") if table[0].startswith("What may change")
    ]
    free, fixed = (set(code(" ".join(row[column] for row in rows))) for column in (0, 1))
    assert fixed == set(PlanSettings.__slots__) - {"weights"}
    assert not free & set(PlanSettings.__slots__) and free <= keys().keys()


def rows_of_others() -> list[tuple[str, str, str, str]]:
    listed = [(page.stem, head, rows) for page in OTHERS for head, rows in tables(page)]
    chosen = [
        (f"{page} {head}", rows) for page, head, rows in listed if not head.startswith(DEFAULTS)
    ]
    return [(tool, *row) for tool, rows in chosen for row in rows]  # type: ignore[misc]


def their_options(theirs: str) -> list[tuple[str, object]]:
    """(name, value or None) of options, as a recipe would have them."""
    found = [re.fullmatch(r"(?:--)?([a-z][a-z_-]*)(?:: (.*)| .*)?", text) for text in code(theirs)]
    return [
        (each[1].replace("-", "_"), yaml.safe_load(each[2] or "null")) for each in found if each
    ]


def is_taken(name: str, value: object) -> bool:
    alias = ALIASES.get("sample_packing" if name == "packing" and isinstance(value, bool) else name)
    return alias is not None and (value is None or isinstance(alias.translate(value), dict))


@pytest.mark.parametrize("row", rows_of_others(), ids=lambda row: f"{row[0]}: {row[1][:40]}")
def test_what_is_marked_is_taken_and_what_is_not_is_not(row: tuple[str, str, str, str]) -> None:
    _, theirs, ours, mark = row
    assert mark in ("", "✓")
    options = their_options(theirs)
    if mark:
        assert options and is_taken(*options[0]), f"a recipe does not take {theirs}"
    else:
        assert [option for option in options if is_taken(*option)] == [], (
            "a recipe takes it: mark it with ✓"
        )
    assert ours, "say what it is here, or: none"


def test_marked_names_become_what_the_page_says() -> None:
    """The key in the second column is the one that a recipe makes of the name in the first."""
    wrongly = []
    for tool, theirs, ours, mark in rows_of_others():
        first = next((name for name, _ in their_options(theirs)), "")
        if not mark or first in ("num_workers", "packing"):  # these two are explained in words
            continue
        made = set(ALIASES[first].keys)
        said = {key for key, _ in settings(ours)} | ({"data"} if "data:" in ours else set())
        if not made & said and "the same" not in ours:
            wrongly.append((tool, first, made, said))
    assert wrongly == []


# Troubleshooting

VALUE = "\0"  # stands for a value in a text that is put together


def said() -> list[str]:
    """Every text in the package's code, with a mark where values go."""
    made = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                made.append(re.sub(r"%[\w.]+", VALUE, node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = [
                    str(part.value) if isinstance(part, ast.Constant) else VALUE
                    for part in node.values
                ]
                made.append("".join(parts))
    return made


SAID = said()


def is_said(message: str) -> bool:
    """Whether one text in the code holds a message's words in this order; `…` stands for values."""
    words = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    return any(re.search(".*".join(words), text, flags=re.DOTALL) for text in SAID)


@pytest.mark.parametrize(
    "heading", re.findall(r"^### `(.*)`$", TROUBLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
)
def test_every_message_that_is_explained_is_one_of_ours(heading: str) -> None:
    assert is_said(heading)


def test_each_code_of_an_error_has_a_message_that_is_explained() -> None:
    """Here, and in tests/sources/test_bad_input.py, texts are pinned; other tests match a code or a class."""
    page = TROUBLE.read_text(encoding="utf-8")
    explained = re.findall(r"^### `(.*)`\n\nCode: `(\w+)`\.$", page, flags=re.MULTILINE)
    classes = {error.code for error in vars(errors).values() if hasattr(error, "code")}
    cases = errors_page.cases()
    assert {code for _, code in explained} - classes == cases.keys()
    for message, of_case in explained:
        words = [part.strip() for part in message.split("…") if part.strip()]
        if of_case in cases:
            assert any(all(word in text for word in words) for _, text in cases[of_case]), (
                of_case,
                words,
            )


def test_a_code_is_of_one_class_or_case_and_survives_a_process() -> None:
    classes = [error for error in vars(errors).values() if isinstance(error, type)]
    assert len({error.code for error in classes}) == len(classes)
    error = PlanError("why", code="no_step")
    assert pickle.loads(pickle.dumps(error)).code == "no_step"
    assert PlanError("why").code == "plan_error" and TemplateError("x", code="y").code == "y"


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert is_said("cannot resume: this run differs from the saved run … resume with the settings")
    assert not is_said("resume with the settings … cannot resume")
    assert not is_said("the moon is … in the wrong place")

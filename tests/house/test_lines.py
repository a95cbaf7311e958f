"""How a line may not look.  The other measures of `make check` are printed, not tested."""

import ast
from pathlib import Path

import pytest

from tests.house.measures import PACKAGE, is_packed


def offences(source: str) -> list[int]:
    """Lines with an assignment that packs several, or with a formatting exception."""
    packed = [node.lineno for node in ast.walk(ast.parse(source)) if is_packed(node)]
    skipped = [number for number, line in enumerate(source.splitlines(), 1) if "fmt: skip" in line]
    return sorted(packed + skipped)


def test_one_assignment_per_statement_and_no_exception_from_the_formatter() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(PACKAGE)}:{line}"
        for file in files
        for line in offences(file.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("a, b = 1, 2", [1]),
        ("self.a, self.b = x, f(y)", [1]),
        ("x = (\n    1)  # fmt: skip", [2]),
        ("a, b = b, a", []),
        ("a, b = f()", []),
        ("low, high = high, low + high", []),
        ("for a, b in ((1, 2),):\n    pass", []),
    ],
)
def test_the_rule_finds_packed_statements_and_lets_swaps_pass(
    source: str, lines: list[int]
) -> None:
    assert offences(source) == lines


def test_the_measures_count_tokens_of_code_and_not_of_docstrings(tmp_path: Path) -> None:
    from tests.house.measures import measure_file

    module = tmp_path / "module.py"
    module.write_text('"""A docstring\nof two lines."""\n\n# a comment\nvalue = 1 + 2\n')
    counts = measure_file(module)
    assert counts["tokens"] == 5
    assert counts["lines"] == 1


def test_a_test_that_uses_what_is_behind_a_door_is_found(tmp_path: Path) -> None:
    from tests.house.inner_tests import inner_names, is_door

    assert is_door("penstock.sources", None) and is_door("penstock.errors", None)
    assert is_door("penstock.extras.media.tar", "media")
    assert not is_door("penstock.extras.media.tar", "view")
    tree = ast.parse(
        "from penstock.store import build, manifest\nfrom penstock.sources.csv import sniff\n"
    )
    assert inner_names(tree, None) == {"manifest", "sniff"}

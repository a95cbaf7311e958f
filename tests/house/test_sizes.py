"""Limits on the size of the package.  As a script it prints lines per room; as a test it fails above a limit.

A limit only goes down, except for what is new and named: Ray, caches in buckets, mixtures that change, balance, SkyRL, the viewer, files
and configurations of other tools, more trainers; and for faults that were found since and are fixed.  The aim is 22,000 lines in 150 files.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

AIM_LINES, AIM_FILES = 22_000, 150
MOST_FILES = 219
LIMITS = {  # lines of each room; "" is the files beside the rooms
    "": 820,
    "cache": 1_250,
    "cli": 1_175,
    "engines": 854,
    "integrations": 2_069,
    "loader": 4_620,
    "places": 1_756,
    "plan": 2_626,
    "prompts": 1_344,
    "recipe": 2_602,
    "report": 2_785,
    "sources": 7_881,
    "store": 2_776,
    "templates": 9_025,
    "testing": 485,
    "view": 1_185,
}

FILE_LINES, FUNCTION_LINES = 400, 50
LONG_FUNCTIONS = {"plan/packing.py:_move_groups": 54}  # longer today


def line_counts(package: Path) -> dict[str, int]:
    """Lines of every module, by its path inside the package."""
    return {
        file.relative_to(package).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in sorted(package.rglob("*.py"))
    }


def function_lines(package: Path) -> dict[str, int]:
    """Lines of every function, as path:name; of two with one name, those of the longer."""
    found: Counter[str] = Counter()
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                name = f"{file.relative_to(package).as_posix()}:{node.name}"
                found[name] = max(found[name], node.end_lineno - node.lineno + 1)
    return dict(found)


def rooms(counts: dict[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for file, lines in counts.items():
        found[file.rpartition("/")[0].partition("/")[0]] += lines
    return found


def too_large(found: dict[str, int], limits: dict[str, int], default: int) -> list[str]:
    return [f"{name}: {lines:,} lines" for name, lines in found.items() if lines > limits.get(name, default)]


def report(counts: dict[str, int]) -> str:
    found = rooms(counts)
    table = [f"{lines:7,}  {room or 'beside the rooms'}" for room, lines in sorted(found.items())]
    total = f"{found.total():7,}  in {len(counts)} files (aim: {AIM_LINES:,} in {AIM_FILES})"
    return "\n".join([*table, total])


def test_no_room_grows() -> None:
    counts = line_counts(PACKAGE)
    assert counts
    assert too_large(rooms(counts), LIMITS, 0) == [], report(counts)
    assert len(counts) <= MOST_FILES


def test_no_file_and_no_function_is_too_long() -> None:
    assert too_large(line_counts(PACKAGE), {}, FILE_LINES) == []
    assert too_large(function_lines(PACKAGE), LONG_FUNCTIONS, FUNCTION_LINES) == []


def test_a_long_file_a_long_function_and_a_new_room_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "long.py").write_text("def f():\n" + "    x = 1\n" * FILE_LINES)
    counts = line_counts(tmp_path)
    assert too_large(counts, {}, FILE_LINES) == ["room/long.py: 401 lines"]
    assert too_large(function_lines(tmp_path), LONG_FUNCTIONS, FUNCTION_LINES) == ["room/long.py:f: 401 lines"]
    assert too_large(rooms(counts), LIMITS, 0) == ["room: 401 lines"]


if __name__ == "__main__":
    sys.stdout.write(report(line_counts(PACKAGE)) + "\n")

"""How big is the house?  As a script it prints lines per room; as a test it stops a file from becoming an attic."""

import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

FILE_AIM = 400  # printed when passed
FILE_LIMIT = 600  # refused when passed
PACKAGE_AIM = 10_000  # only printed


def line_counts(package: Path) -> dict[str, int]:
    """Lines of every module, by its path inside the package."""
    return {
        file.relative_to(package).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in sorted(package.rglob("*.py"))
    }


def report(counts: dict[str, int]) -> str:
    rooms: Counter[str] = Counter()
    for file, lines in counts.items():
        rooms[file.partition("/")[0]] += lines
    table = [f"{lines:7,}  {room}" for room, lines in rooms.items()]
    long = [f"over the aim of {FILE_AIM} lines: {file} ({lines})" for file, lines in counts.items() if lines > FILE_AIM]
    return "\n".join([*table, f"{rooms.total():7,}  in all (aim: at most {PACKAGE_AIM:,})", *long])


def too_long(counts: dict[str, int]) -> list[str]:
    return [file for file, lines in counts.items() if lines > FILE_LIMIT]


def test_no_file_is_an_attic() -> None:
    counts = line_counts(PACKAGE)
    assert counts
    assert too_long(counts) == [], report(counts)


def test_an_attic_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "attic.py").write_text("x = 1\n" * (FILE_LIMIT + 1))
    (tmp_path / "room" / "full.py").write_text("x = 1\n" * (FILE_AIM + 1))
    counts = line_counts(tmp_path)
    assert too_long(counts) == ["room/attic.py"]
    assert "1,002  room" in report(counts)
    assert "room/full.py (401)" in report(counts)


if __name__ == "__main__":
    sys.stdout.write(report(line_counts(PACKAGE)) + "\n")

"""What tests ask of the operating system about processes."""

import contextlib
from pathlib import Path


def children() -> set[int]:
    """The children of this process, also those that have ended and were not waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(
            FileNotFoundError
        ):  # a thread that has ended since the folder was listed
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found

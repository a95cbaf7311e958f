"""The command as a user starts it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Result = subprocess.CompletedProcess[str]
Penstock = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path) -> Penstock:
    """The command in a process of its own, in an empty folder, with a cache of its own."""

    def run(*arguments: str | Path, **environment: str) -> Result:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache"), **environment},
        )

    return run

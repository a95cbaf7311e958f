"""Folders for tests that write hundreds of small files: in memory where the machine has that, as every publish waits for the disk."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def new_folder() -> Iterator[Callable[[], Path]]:
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="penstock-test-", dir=memory if memory.is_dir() else None))
    numbers = itertools.count()

    def new() -> Path:
        folder = root / str(next(numbers))
        folder.mkdir()
        return folder

    yield new
    shutil.rmtree(root)

"""A server of builders for the tests that kill, disturb and race them."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .builders import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory where there is one: a kill loses nothing that was written, so a disk would only make it slow."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir=shared) as folder:
        yield Path(folder)

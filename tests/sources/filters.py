"""Filter functions at the top of a module, as a user has them: worker processes import them, and their text can be read."""

import os
from pathlib import Path


def is_easy(record):
    return record["id"] % 5 > 0


def is_easy_and_counted(record):
    """Leave a trace of each call."""
    with (Path(os.environ["PENSTOCK_TEST_CALLS"]) / str(os.getpid())).open("a") as file:
        file.write("x")
    return record["id"] % 5 > 0


def is_one_of(record):
    return record["id"] % 5 in {1, 2, 3, 4} and "id" in {"id", "gold", "other"}


def fails(record):
    return 1 / (record["id"] - 7)

"""Which tests run only in a soak, which run in one process, and which may be skipped in CI.  No test is retried.

`conftest.py` applies the tables.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

# `make soak` sets it.  Tests with the mark `soak` run only then; others draw more examples, or kill more often.
SOAK = bool(os.environ.get("PENSTOCK_SOAK"))

# Hypothesis draws new examples in a soak, and in `make property SEED=N`.
RANDOM_EXAMPLES = SOAK or bool(os.environ.get("PENSTOCK_SEED"))

# Tests that run in one process, because they share what takes long to make: a cluster, or the results of a job.
TOGETHER = (
    "tests/extras/ray/",
    "tests/extras/rl/test_grpo.py",
    "tests/extras/rl/test_grpo_ranks.py",
    "tests/extras/rl/test_miles.py",
    "tests/extras/trainers/test_losses.py",
    "tests/extras/trainers/test_pairs.py",
    "tests/extras/trainers/test_refusals.py",
    "tests/extras/trainers/test_starts.py",
    "tests/extras/losses/test_losses.py",
    "tests/extras/rl/test_skyrl.py",
    "tests/templates/test_hostile_templates.py",
)

# Reasons for which CI may skip a test.  A skip with any other reason fails the run where CI is set.
ALLOWED_SKIPS = {
    "strace is not installed": "a Debian package; it makes single system calls fail or kills a process at one of them",
    "no browser": "chromium is a Debian package; it opens the report page as a user would",
    "deepspeed is not installed": "it is large, and pip cannot check its dependencies on a CPU; ZeRO runs killed and resumed need it",
    "azurite is not installed": "Azure's emulator is a package of npm; a cache in Azure is read and written there",
    "no right to mount": "a sandbox may forbid mounts; a small disk is mounted to run out of space",
    "no small disk can be mounted": "a sandbox may forbid mounts; a small disk is mounted to run out of space",
    "only root can become another user": "tests of other users' files need a second user",
    "PENSTOCK_REAL_DATA is not set": "real tokenizers and conversations are not part of the repository",
}


def in_soak_only(item: pytest.Item) -> bool:
    """Whether `make test` leaves this test out: it repeats what another test promises, for longer or in more variants."""
    return not SOAK and item.get_closest_marker("soak") is not None


def first_in_short_runs(values: Iterable[object]) -> list[object]:
    """Values of a parametrized test: all in a soak, only the first in `make test`."""
    first, *others = values
    return [first, *(pytest.param(value, marks=pytest.mark.soak) for value in others)]


def every_third_in_short_runs(values: Iterable[object]) -> list[object]:
    """Values of a parametrized test that a full test of the same values stands next to it: all in a soak, a third in `make test`."""
    return [
        value if number % 3 == 0 else pytest.param(value, marks=pytest.mark.soak)
        for number, value in enumerate(values)
    ]


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def fail_unlisted_skip(report: Report) -> Report:
    """Turn a skip into a failure where CI is set, unless its reason is listed above."""
    if not (report.skipped and os.environ.get("CI")) or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(allowed in reason for allowed in ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped in CI: {reason}\nInstall what it needs, or list the reason in tests/policy.py"
    return report

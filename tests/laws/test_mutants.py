"""The laws find mistakes: each mutant is a small mistake in the plan or in prompts; the tests named for it must fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.laws.mutants import MUTANTS, find

ROOT = Path(__file__).parents[2]


@pytest.mark.extra("rl")  # the leases of prompts have mutants, too
def test_every_mutant_names_a_function_that_exists():
    assert len(MUTANTS) == 57
    for mutant in MUTANTS.values():
        assert callable(find(mutant.function))


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_the_laws_notice(name):
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--no-header",
        "-p",
        "tests.laws.mutants",
    ]
    options += [
        "--assert=plain"
    ]  # in CI, pytest explains the difference of two long lists for a minute
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, MUTANTS[name].noticed_by],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_MUTANT": name},
        capture_output=True,
        text=True,
        timeout=280,  # a loaded machine takes minutes; the test's own limit is 300
    )
    assert run.returncode == 1, (
        f"the tests did not notice that {name}:\n{(run.stdout + run.stderr)[-2000:]}"
    )
    assert "1 failed" in run.stdout, run.stdout[-2000:]  # in a test, not in collecting them

"""No test is retried, a soak has tests of its own, and every skip has a reason."""

import os
import subprocess
import sys
from pathlib import Path

from tests.policy import ALLOWED_SKIPS

ROOT = Path(__file__).parents[2]

PROBE = """
import pytest

@pytest.mark.soak
def test_long():
    pass

def test_short():
    pass

@pytest.mark.skip(reason="{listed}: so")
def test_skipped_for_a_reason_that_is_listed():
    pass

@pytest.mark.skip(reason="torch is gone")
def test_skipped():
    pass
"""


def test_no_test_is_retried() -> None:
    """One that fails now and then is repaired, or runs in `make soak` only."""
    assert "rerunfailures" not in (ROOT / "pyproject.toml").read_text()
    assert "--reruns" not in (ROOT / "Makefile").read_text()


def test_a_skip_in_ci_fails_unless_its_reason_is_listed(tmp_path: Path) -> None:
    listed = next(iter(ALLOWED_SKIPS))
    folder = project_with(tmp_path, PROBE.format(listed=listed))
    ran = run_pytest(folder, CI="true")
    assert "1 passed, 1 skipped, 1 deselected, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "test_skipped was skipped in CI: " in ran.stdout and listed in ran.stdout


def test_a_test_of_a_soak_is_left_out_and_can_be_asked_for(tmp_path: Path) -> None:
    """And every skip prints its reason."""
    folder = project_with(tmp_path, PROBE.format(listed="so"))
    ran = run_pytest(folder, PENSTOCK_SOAK="1")
    assert "2 passed, 2 skipped" in ran.stdout and "torch is gone" in ran.stdout, ran.stdout
    assert "1 passed, 3 deselected" in run_pytest(folder, "-m", "soak").stdout


def project_with(folder: Path, probe: str) -> Path:
    """A project with this one test file, under our own conftest."""
    tests = folder / "tests"
    tests.mkdir(parents=True)
    (tests / "__init__.py").touch()
    for name in ("conftest.py", "policy.py"):
        (tests / name).write_text((ROOT / "tests" / name).read_text())
    (tests / "test_probe.py").write_text(probe)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    return folder


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    left_out = ("CI", "PENSTOCK_SOAK", "PYTEST_XDIST_WORKER")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", *options]
    return subprocess.run(
        [*command, "tests"], cwd=folder, env=kept | environment, capture_output=True, text=True
    )

"""No test is retried, a soak has tests of its own, and every skip has a reason."""

import os
import subprocess
import sys
from pathlib import Path

from tests.policy import ALLOWED_SKIPS

ROOT = Path(__file__).parents[2]

SKIPPED = """
import pytest

@pytest.mark.skip(reason="{reason}")
def test_skipped():
    pass
"""


def test_no_test_is_retried() -> None:
    """One that fails now and then is repaired, or runs in `make soak` only."""
    assert "rerunfailures" not in (ROOT / "pyproject.toml").read_text()
    assert "--reruns" not in (ROOT / "Makefile").read_text()


def test_a_test_of_a_soak_is_left_out_and_can_be_asked_for(tmp_path: Path) -> None:
    probe = "import pytest\n\n@pytest.mark.soak\ndef test_long():\n    pass\n\ndef test_short():\n    pass\n"
    folder = project_with(tmp_path, probe)
    assert "1 passed, 1 deselected" in run_pytest(folder).stdout
    assert "1 passed, 1 deselected" in run_pytest(folder, "-m", "soak").stdout
    assert "2 passed" in run_pytest(folder, PENSTOCK_SOAK="1").stdout


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


def test_a_skip_in_ci_fails_unless_its_reason_is_listed(tmp_path: Path) -> None:
    listed = next(iter(ALLOWED_SKIPS))
    for number, (reason, environment, expected) in enumerate(
        [
            ("torch is gone", {"CI": "true"}, 1),
            ("torch is gone", {}, 0),
            (f"{listed}: so", {"CI": "true"}, 0),
        ]
    ):
        folder = project_with(tmp_path / str(number), SKIPPED.format(reason=reason))
        result = run_pytest(folder, **environment)
        assert result.returncode == expected, result.stdout + result.stderr
        assert ("was skipped in CI: " in result.stdout) == (expected == 1), result.stdout
        assert expected == 1 or reason in result.stdout  # every skip prints its reason

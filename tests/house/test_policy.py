"""Retries and skips stay few and named."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.policy import ALLOWED_SKIPS, RACING

ROOT = Path(__file__).parents[2]

PROBE = """
import os
import pytest
{imports}

@pytest.mark.skip(reason="{reason}")
def test_skipped():
    pass
"""


def test_at_most_forty_tests_may_be_retried() -> None:
    assert len(RACING) <= 40
    assert all(RACING.values()), "each says why it races"


def test_every_test_that_may_be_retried_exists() -> None:
    for node in RACING:
        file, _, function = node.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), flags=re.MULTILINE), node


def test_nothing_else_retries_a_test() -> None:
    assert "--reruns" not in (ROOT / "Makefile").read_text()
    for file in (ROOT / "tests").rglob("test_*.py"):
        assert not re.search(r"mark\.flaky", file.read_text()) or file.name == "test_policy.py", (
            file
        )


def run_pytest(folder: Path, reason: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one skipped test under the project's own conftest."""
    tests = folder / "tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    for name in ("conftest.py", "policy.py"):
        (tests / name).write_text((ROOT / "tests" / name).read_text())
    (tests / "test_probe.py").write_text(PROBE.format(imports="", reason=reason))
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("CI", "PYTEST_XDIST_WORKER")},
        **environment,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "tests"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_skip_in_ci_fails_unless_its_reason_is_listed(tmp_path: Path) -> None:
    listed = next(iter(ALLOWED_SKIPS))
    for number, (reason, environment, expected) in enumerate(
        [
            ("torch is gone", {"CI": "true"}, 1),
            ("torch is gone", {}, 0),
            (f"{listed}: so", {"CI": "true"}, 0),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run_pytest(folder, reason, **environment)
        assert result.returncode == expected, result.stdout + result.stderr
        assert ("was skipped in CI: " in result.stdout) == (expected == 1), result.stdout

"""Is `import penstock` cheap?  A fresh process imports it, and everything it offers; then we look what came along."""

import json
import os
import re
import subprocess
import sys

import pytest

HEAVY = {
    *("torch", "transformers", "datasets", "ray", "pyarrow.dataset", "pandas", "scipy", "trl", "accelerate"),
    *("lightning", "huggingface_hub", "obstore", "matplotlib", "IPython"),
}


def brought_along(statement: str) -> set[str]:
    """Heavy modules that a fresh interpreter holds after the statement, or imported on the way and let go."""
    probe = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", probe], env=os.environ, capture_output=True, text=True, check=True
    )
    held = set(json.loads(result.stdout))
    passed = set(re.findall(r"^import time:.*\|\s*(\S+)$", result.stderr, flags=re.MULTILINE))
    assert "json" in held and "json" in passed  # both lists were read
    return (held | passed) & HEAVY


@pytest.mark.parametrize("statement", ["import penstock", "from penstock import *", "import penstock.errors"])
def test_import_brings_nothing_heavy(statement: str) -> None:
    assert brought_along(statement) == set()


def test_a_heavy_import_is_noticed() -> None:
    assert "pyarrow.dataset" in brought_along("import pyarrow.dataset")
    assert "pyarrow.dataset" in brought_along("import pyarrow.dataset, sys; del sys.modules['pyarrow.dataset']")
